"""Constants of kernels and libraries: tables shipped with their sources in ``cost_models/data``."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def constants(name: str) -> dict[str, Any]:
    """The table ``cost_models/data/<name>.toml``; do not change it."""
    return tomllib.loads((files("cost_models") / "data" / f"{name}.toml").read_text(encoding="utf-8"))
