"""Nothing outside the rooms of tasks assumes that images are learned, or accuracy measured."""

import io
import re
import tokenize
from pathlib import Path

import nefl

ROOT = Path(nefl.__file__).parent
ASSUMED = re.compile(r"ImageDataset|uint8|[aA]ccurac|ACCURAC")
ROOMS = ("data", "tasks", "asking/pictures.py")
"""Where images and metrics are at home."""

BYTES = {"engines/flower/messages.py", "elastic/file.py", "artifacts/checkpoint.py"}
"""Where uint8 is a byte of a file or message, not a pixel."""

OTHERS = {
    "artifacts/older.py": "folders that were written before there were tasks",
    "artifacts/card.py": "files that were written before there were tasks",
    "report/reading/runs.py": "folders that do not say what was measured",
    "config/run.py": "what the paper's tables report",
    "report/reading/published.py": "what the paper's tables report",
    "estimate/checking.py": "stands in for images that are not at hand",
}
"""Other places, each with its reason."""


def assumptions(path: Path) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    code = [t for t in tokens if t.type != tokenize.COMMENT]
    return [f"{t.start[0]}: {found[0]}" for t in code if (found := ASSUMED.search(t.string))]


def test_image_only_assumptions_are_gone() -> None:
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(ROOMS) and (places := assumptions(path)):
            found[name] = places
    known = BYTES | OTHERS.keys()
    assert not {name: places for name, places in found.items() if name not in known}
    assert found.keys() == known, "a reason that has gone"
    assert all(place.endswith("uint8") for name in BYTES for place in found[name])
