"""Lists of words, written as text."""


def split(text: str) -> list[str]:
    """The parts of a text between commas."""
    return [part.strip() for part in text.split(",")]
