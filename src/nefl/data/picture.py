"""A picture in text of how the classes spread over the clients."""

import numpy as np

from nefl.data.partition import Partition
from nefl.data.subsets import Labels
from nefl.wording import counted

_SHADES = " .:-=+*#%@"  # plain ASCII: readable in any terminal and log
_MOST_ROWS = 20
_BAR = 40  # characters of the largest client
_WIDE_CLASSES = 30  # up to this many classes, a column is two characters wide


def draw_label_distribution(partition: Partition, labels: Labels, classes: int) -> str:
    """Draw one row a client and one column a class; a darker mark is a larger share of the client.

    At most 20 clients are drawn; the others are summed up in a line.
    """
    counts = partition.label_counts(labels, classes)
    shown = min(partition.clients, _MOST_ROWS)
    width = 2 if classes <= _WIDE_CLASSES else 1
    number = len(str(partition.clients - 1))
    whole = {"client": partition.clients, "example": len(partition.indices), "class": classes}
    lines = [", ".join(counted(count, noun) for noun, count in whole.items())]
    for client in range(shown):
        total = int(counts[client].sum())
        # Rounded up: a class that is there at all leaves a mark.
        levels = -(-counts[client] * (len(_SHADES) - 1) // max(total, 1))
        marks = "".join(_SHADES[level] * width for level in levels.tolist())
        lines.append(f"client {client:>{number}} |{marks}| {total}")
    if shown < partition.clients:
        lines.append(_summary(counts[shown:]))
    return "\n".join(lines)


def draw_sizes(partition: Partition) -> str:
    """Draw how many examples each client has, where they have no classes."""
    sizes = partition.sizes
    shown = min(partition.clients, _MOST_ROWS)
    number, largest = len(str(partition.clients - 1)), max(1, int(sizes.max()))
    lines = [f"{partition.clients} clients, {len(partition.indices)} examples"]
    for client in range(shown):
        bar = "#" * -(-int(sizes[client]) * _BAR // largest)
        lines.append(f"client {client:>{number}} |{bar:<{_BAR}}| {sizes[client]}")
    if shown < partition.clients:
        rest = sizes[shown:]
        lines.append(
            f"... and {len(rest)} more: {rest.min()} to {rest.max()} examples each "
            f"(median {np.median(rest):g})"
        )
    return "\n".join(lines)


def _summary(counts: np.typing.NDArray[np.int64]) -> str:
    sizes = counts.sum(axis=1)
    held = (counts > 0).sum(axis=1)
    return (
        f"... and {len(counts)} more: {sizes.min()} to {sizes.max()} examples each "
        f"(median {np.median(sizes):g}), {held.min()} to {held.max()} classes "
        f"(median {np.median(held):g})"
    )
