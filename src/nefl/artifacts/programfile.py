"""ExecuTorch programs as files: the card and a checksum follow behind the program.

The runtime does not look there, and it does not check what it reads: damaged bytes must not reach
it.
"""

import hashlib
import struct
from pathlib import Path

from nefl.errors import RunError

MAGIC = b"ET12"  # at byte 4 of a program
TRAILER = struct.Struct("<Q32s8s")  # bytes of the card, checksum of all before, mark
_MARK = b"nefl-pte"


def seal(program: bytes, card: bytes) -> bytes:
    """Return a program with its card and the checksum of both behind it."""
    digest = hashlib.sha256(program + card).digest()
    return program + card + TRAILER.pack(len(card), digest, _MARK)


def unseal(path: Path) -> tuple[bytes, str]:
    """Return the program of a file and the text of its card.

    Raises:
        RunError: if the file is missing, foreign, cut off or damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    if data[4:8] != MAGIC:
        raise RunError(f"{path}: is no ExecuTorch program")
    content, trailer = data[: -TRAILER.size], data[-TRAILER.size :]
    length, digest, mark = TRAILER.unpack(trailer.rjust(TRAILER.size, b"\0"))
    if mark != _MARK:
        raise RunError(f"{path}: was not written by `nefl export`, or is cut off")
    if hashlib.sha256(content).digest() != digest or length > len(content):
        raise RunError(
            f"{path}: is damaged: its contents do not have its checksum; copy it anew, or export "
            "it again"
        )
    end = len(content) - length
    return content[:end], content[end:].decode(errors="replace")
