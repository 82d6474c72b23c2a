"""Trace a function or a module of the user's, with JAX or torch.

    python -m planner.verification.programs.trace task.json

Prints, as JSON, its `Program`, or why it has none.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster_specs.errors import InputError
from planner.errors import PlannerError
from planner.tracing.program import Program
from planner.tracing.reading.from_jax import from_jax
from planner.tracing.reading.from_torch import from_torch
from planner.verification.programs.functions import load_function


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    try:
        found: dict[str, Any] = {"program": trace(task).model_dump(mode="json", by_alias=True)}
    except (InputError, PlannerError) as error:
        found = {"refused": str(error)}
    except Exception as error:  # whatever the user's file raises
        found = {"refused": f"{task['function']} cannot be traced: {type(error).__name__}: {error}"}
    print(json.dumps(found))


OF_MODULES: Mapping[str, str] = {
    "gradient": "hand in jax.value_and_grad of it, or what from_torch(..., gradient=True) returns",
    "optimizer": "hand in a whole step, or what from_torch(..., optimizer=...) returns",
}
"""Options that modules alone have, and what to do instead."""


def trace(task: dict[str, Any]) -> Program:
    """The program of ``task["function"]``, which remembers where it came from; a module is one with parameters."""
    target = task["function"]
    how = {
        "replicate_unknown": task["replicate_unknown"],
        "trips": task["trips"],
        "rules": task.get("rules", {}),
    }
    loaded = load_function(target)
    title = target.rpartition(":")[2]
    more: dict[str, str] = {name: task[name] for name in OF_MODULES if task.get(name)}
    if isinstance(loaded, Program) or not hasattr(loaded[0], "named_parameters"):
        for name in more:
            what = "a program already" if isinstance(loaded, Program) else "a function"
            raise InputError(f"{target} is {what}, which --{name} is not for: {OF_MODULES[name]}")
    if isinstance(loaded, Program):
        return loaded
    if hasattr(loaded[0], "named_parameters"):
        optimizer = optimizer_of(more["optimizer"]) if "optimizer" in more else None
        gradient = "gradient" in more
        program = from_torch(*loaded, gradient=gradient, optimizer=optimizer, name=title, **how)
    else:
        program = from_jax(*loaded, name=title, **how)
    options = more | ({"trips": str(task["trips"])} if task["trips"] else {})
    return program.model_copy(
        update={"source": target, "traced_with": {k: str(v) for k, v in options.items()}}
    )


def optimizer_of(name: str) -> Any:
    """The class of that name in ``torch.optim``, however its letters are written."""
    import torch

    classes = {c.__name__.lower(): c for c in vars(torch.optim).values() if isinstance(c, type)}
    known = {n: c for n, c in classes.items() if issubclass(c, torch.optim.Optimizer)}
    if name.lower() not in known:
        names = ", ".join(sorted(c.__name__ for c in known.values() if c is not torch.optim.Optimizer))
        raise InputError(f"--optimizer {name!r} is none of torch.optim: {names}")
    return known[name.lower()]


if __name__ == "__main__":
    main(sys.argv[1])
