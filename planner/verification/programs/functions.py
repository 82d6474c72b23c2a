"""A function of the user's, with arguments to trace it with, from ``FILE.py:NAME``.

NAME is a tuple ``(function, *arguments)``, a function of nothing that returns one, or a `Program`.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from cluster_specs.errors import InputError
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
