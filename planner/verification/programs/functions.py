"""A function of the user's, with arguments to trace it with, from ``FILE.py:NAME``, and a mesh to run it on.

NAME is a tuple ``(function, *arguments)``, a function of nothing that returns one, or a `Program`.
"""

import importlib.util
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cluster_specs.errors import InputError
from planner.errors import PlannerError
from planner.tracing.program import Program


def load_function(target: str) -> tuple[Any, ...] | Program:
    """What ``target`` names.

    The file exists. Raises ``InputError`` where it has no such name, or the name is something else.
    """
    file, _, name = target.rpartition(":")
    path = Path(file)
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{target}: {path} is no Python file; write FILE.py:NAME")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, name):
        raise InputError(f"{target}: {path} has no {name!r}")
    found = getattr(module, name)
    found = found() if callable(found) else found
    if isinstance(found, Program) or (isinstance(found, tuple) and found and callable(found[0])):
        return found
    raise InputError(f"{target}: expected (function, *arguments) or a Program, found {type(found).__name__}")


def smaller_mesh(mesh: Mapping[str, int], most: int) -> dict[str, int]:
    """The same axes on at most ``most`` devices: the largest axis is divided by its smallest factor, again and again.

    What divides by an axis also divides by a factor of it, so every layout stays possible.
    """
    sizes = dict(mesh)
    while math.prod(sizes.values()) > most:
        axis = max(sizes, key=lambda name: sizes[name])
        sizes[axis] //= next(n for n in range(2, sizes[axis] + 1) if sizes[axis] % n == 0)
    return sizes


def print_answer(path: str, check: Callable[[Mapping[str, Any]], dict[str, Any]]) -> None:
    """Print, as JSON, what ``check`` finds for the task in ``path``, or why it refuses it."""
    task = json.loads(Path(path).read_text())
    try:
        found = check(task)
    except (InputError, PlannerError) as error:
        found = {"refused": str(error)}
    print(json.dumps(found))
