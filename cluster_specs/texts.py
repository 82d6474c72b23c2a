"""Text files that people write, as data: TOML, YAML or JSON, and one sentence for whatever is wrong with them."""

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cluster_specs.errors import InputError, kind_of

MAX_TEXT_BYTES = 1 << 20
"""Largest hand-written file read [bytes]: such files have a page; YAML of more takes minutes to refuse."""


def _yaml(text: str) -> Any:
    import yaml

    return yaml.safe_load(text)


PARSERS: Mapping[str, Callable[[str], Any]] = MappingProxyType(
    {".json": json.loads, ".toml": tomllib.loads, ".yaml": _yaml, ".yml": _yaml}
)
"""Parser of each file type, by suffix."""


def read_text(path: Path) -> str:
    """Text of a file; ``InputError`` where it does not exist or is not text."""
    try:
        return path.read_text(encoding="utf-8-sig")  # which Windows begins with a byte order mark
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder, a file is needed") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text (byte {error.start} is not UTF-8)") from error


def parse_mapping(text: str, suffix: str, name: str) -> dict[str, Any]:
    """Top-level table of a JSON, TOML or YAML text; ``InputError`` says where it breaks."""
    if suffix not in PARSERS:
        raise InputError(f"{name}: unknown file type {suffix!r}; use {', '.join(PARSERS)}")
    if suffix != ".json" and len(text) > MAX_TEXT_BYTES:
        raise InputError(
            f"{name} has {len(text)} characters; a hand-written {suffix} file has at most {MAX_TEXT_BYTES}"
        )
    if not text.strip():
        raise InputError(f"{name} is empty; a table of keys was expected")
    try:
        data = PARSERS[suffix](text)
    except RecursionError as error:
        raise InputError(f"{name} is nested too deeply") from error
    except Exception as error:  # each parser has its own tree of errors; all of them mean: not this format
        raise InputError(f"{name} is not valid {suffix[1:].upper()}: {_reason(error)}") from error
    if not isinstance(data, dict):
        raise InputError(f"{name}: the top level must be a table of keys, found {kind_of(data)}")
    return data


def load_mapping(path: Path, suffix: str | None = None) -> dict[str, Any]:
    """Top-level table of a JSON, TOML or YAML file, as its name or ``suffix`` says."""
    return parse_mapping(read_text(path), suffix or path.suffix.lower(), str(path))


def _reason(error: Exception) -> str:
    """What a parser says on one line; PyYAML's errors have the place and the problem apart."""
    place, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if place is not None and problem:
        return f"{problem} (at line {place.line + 1}, column {place.column + 1})"
    return " ".join(str(error).split())
