"""Arguments out of a shell script: variables that the script itself sets are put in, nothing is run."""

import re
import shlex
from collections.abc import Iterator, Mapping

from planner.errors import InputError

ASSIGNMENT = re.compile(r"^\s*(?:export\s+|local\s+)?(\w+)=(?!\()(\"[^\"]*\"|'[^']*'|[^\s;#]*)", re.MULTILINE)

VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")

ARRAY = re.compile(r"(\w+=\()")
"""Where a shell array begins; its arguments follow."""

END = re.compile(r"\w+=.*|[();&|]+|.*\.py")
"""Words that end the values of an argument: an assignment, the end of a command or an array, the program to run."""

ROUNDS = 8
"""Variables may name variables, so deep."""


def read_arguments(text: str, source: str) -> dict[str, object]:
    """Every ``--name value ...`` of a script: name (with dashes) -> True, a text, or a list of texts.

    The last one wins, as in argparse. Raises ``InputError`` for quotes that do not end.
    """
    variables = {found[1]: found[2].strip("\"'") for found in ASSIGNMENT.finditer(text)}
    try:
        words = shlex.split(
            ARRAY.sub(r"\1 ", _substitute(text, variables).replace("\\\n", " ")), comments=True
        )
    except ValueError as error:
        raise InputError(f"{source} is no shell script with arguments: {error}") from error
    return dict(_grouped(words))


def _substitute(text: str, variables: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[3], found[2] if found[2] is not None else found[0])

    for _ in range(ROUNDS):
        changed = VARIABLE.sub(value, text)
        if changed == text:
            break
        text = changed
    return text


def _grouped(words: list[str]) -> Iterator[tuple[str, object]]:
    name: str | None = None
    values: list[str] = []
    for word in (_closed(w) for w in [*words, "--"]):
        ends = END.fullmatch(word) is not None
        if not ends and not word.startswith("--"):
            values.append(word)
            continue
        if name is not None:
            yield name, True if not values else values[0] if len(values) == 1 else values
        name, values = None, []
        if not ends and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []


def _closed(word: str) -> str:
    """``word`` without the parenthesis that ends a shell array."""
    return word[:-1] if word.count(")") > word.count("(") and len(word) > 1 else word
