"""Numbers as people read them, and the words that follow one."""


def counted(count: int, noun: str) -> str:
    """Write how many of something there are, as in 1 round, 5 rounds, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"


def show_count(count: float) -> str:
    """Write a large number for people, as in 6.711M."""
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("K", 1e3)):
        if count >= size:
            return f"{count / size:.{3 if count < 100 * size else 1}f}{unit}"
    return f"{count:.0f}"


def show_loss(loss: float) -> str:
    """Write a loss for people; one that a client made up takes no more room than others."""
    return f"{loss:.3f}" if abs(loss) < 1e6 else f"{loss:.2e}"


def show_bytes(count: float) -> str:
    """Write a number of bytes for people, as in 8.5 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def show_duration(seconds: float) -> str:
    """Write a duration for people."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
