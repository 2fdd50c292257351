"""All that nefl writes to a terminal passes here: text from files is shown and never obeyed.

Class names, cards, logs and the names of runs come from others. Control characters in them could
move the cursor, colour, retitle or write over what stands there; square brackets are markup to
rich. Both are shown as what they are.
"""

import logging
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

PIPE_WIDTH = 160
"""Columns where there is no terminal to set them."""

# Controls of both sets but newline and tab, marks that turn the direction of text, marks that
# cannot be seen, and halves of characters, which cannot be written.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    r"""Return a text with every character that a terminal would obey as an escape, like `\x1b`."""
    return _UNSEEN.sub(lambda found: ascii(found.group())[1:-1], text)


class Terminal(Console):
    """A console that takes no text for markup and lets no control character of a text through."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render something; only rich's own segments may steer the terminal."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)


def console_for_tables() -> Terminal:
    """Return a console that cuts nothing off where there is no terminal to set the width."""
    console = Terminal()
    return console if console.is_terminal else Terminal(width=PIPE_WIDTH)


def in_columns(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, folded: Collection[int]
) -> Iterator[str]:
    """Yield the lines of a long table, in a tenth of the time that rich takes for one.

    Args:
        headings: what stands above the columns.
        rows: their cells.
        width: how wide a line may be.
        folded: the columns of texts, on the left and in lines where they are too long; the others
            are numbers, on the right.
    """
    sizes = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    room = width - sum(size + 2 for n, size in enumerate(sizes) if n not in folded)
    for place, column in enumerate(folded):  # texts share what numbers leave
        fair = max(1, room // (len(folded) - place) - 2)
        sizes[column] = min(sizes[column], fair)
        room -= sizes[column] + 2
    for number, row in enumerate((headings, *rows)):
        cells = [
            [cell] if len(cell) <= size else wrap(cell, size)
            for cell, size in zip(row, sizes, strict=True)
        ]
        for line in zip_longest(*cells, fillvalue=""):
            parts = (
                text.ljust(size) if n in folded else text.rjust(size)
                for n, (text, size) in enumerate(zip(line, sizes, strict=True))
            )
            yield "  ".join(parts).rstrip()
        if number == 0:
            yield "─" * min(width, sum(size + 2 for size in sizes) - 2)


def say(text: object, *, err: bool = False, nl: bool = True) -> None:
    """Write plain text, to the standard error if `err`."""
    typer.echo(visible(str(text)), err=err, nl=nl)


class LogHandler(logging.Handler):
    """Shows what nefl's modules note on the standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show a note."""
        say(record.getMessage(), err=True)
