"""Words that follow a number."""


def counted(count: int, noun: str) -> str:
    """Write how many of something there are, as in 1 round, 5 rounds, 2 classes."""
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending}"
