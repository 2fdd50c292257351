"""The commands in `deploy/` and on the pages about it, for the tests that parse and start them."""

import configparser
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs/fleet.md"
PROGRAMS = ("nefl", "flwr", "flower-superlink", "flower-supernode")


def compose() -> dict[str, Any]:
    """Return the compose file."""
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def unit(name: str) -> configparser.ConfigParser:
    """Return a unit file; of keys that stand there twice, the last."""
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment, method-assign]
    text = (DEPLOY / "systemd" / name).read_text()
    read.read_string(text.replace("\\\n", ""))
    return read


def blocks(page: Path, kind: str = "[a-z]*") -> list[str]:
    """Return the blocks of code of a page, as they are shown."""
    found = re.findall(rf"^( *)```{kind}\n(.*?)^\1```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(indent + text) for indent, text in found]


def commands(page: Path) -> list[list[str]]:
    """Return the commands of nefl and Flower in a page's blocks of code, in words."""
    found = []
    for line in "\n".join(blocks(page)).replace("\\\n", " ").splitlines():
        bare = re.sub(r"^(docker compose exec \S+|sudo -u \S+) ", "", line.strip())
        words = _words(re.sub(r"( > \S+)?( 2>&1)? &$", "", bare))
        if words and Path(words[0]).name in PROGRAMS:
            found.append([Path(words[0]).name, *words[1:]])
    return found


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a line of something else
        return []
