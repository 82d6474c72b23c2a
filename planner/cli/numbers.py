"""Lists of numbers as options: ``1`` or ``1,1,2``."""

from planner.errors import InputError


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers of ``text``; ``InputError`` names the option where one cannot be read."""
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            raise InputError(f"{option} {text!r}: {word.strip()!r} is no number; write 1 or 1,1,2") from None
    return tuple(numbers)
