"""Lists of numbers as options: ``1`` or ``1,1,2``."""

from contextlib import suppress

import typer

from planner.errors import InputError


def whole_number(option: str, text: str) -> int:
    """The number, ``1024`` or ``4e6``; ``InputError`` names the option where it is no whole one."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (number := float(text)).is_integer():
            return int(number)
    raise InputError(f"{option} {text!r} is no whole number; write 1024 or 4e6")


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers of ``text``; ``InputError`` names the option where one cannot be read."""
    numbers = []
    for word in text.split(","):
        try:
            numbers.append(float(word))
        except ValueError:
            raise InputError(f"{option} {text!r}: {word.strip()!r} is no number; write 1 or 1,1,2") from None
    return tuple(numbers)


def number_option(value: float | str) -> float:
    """A number as typer's ``parser``, whose own refusal is about its input."""
    try:
        return float(value)
    except ValueError:
        raise typer.BadParameter(f"{str(value)!r} is no number; write 15 or 15e12") from None


def share_option(value: float | str) -> float:
    """A share of a whole, ``0.05`` or ``5%``, as typer's ``parser``."""
    text = str(value)
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no share; write 0.05 or 5%") from None


def whole_option(value: int | str) -> int:
    """`whole_number` as typer's ``parser``: its refusal names the option."""
    try:
        return whole_number("", str(value))
    except InputError as error:
        raise typer.BadParameter(str(error).strip()) from None
