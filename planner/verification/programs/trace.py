"""Trace a function or a module of the user's, with JAX or torch.

    python -m planner.verification.programs.trace task.json

Prints, as JSON, its `Program`, or why it has none.
"""

import json
import sys
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


def trace(task: dict[str, Any]) -> Program:
    """The program of ``task["function"]``, which remembers where it came from; a module is one with parameters."""
    target = task["function"]
    how = {
        "replicate_unknown": task["replicate_unknown"],
        "trips": task["trips"],
        "rules": task.get("rules", {}),
    }
    loaded = load_function(target)
    if isinstance(loaded, Program):
        return loaded
    title = target.rpartition(":")[2]
    gradient = task.get("gradient", False)
    if hasattr(loaded[0], "named_parameters"):
        program = from_torch(*loaded, gradient=gradient, name=title, **how)
    elif gradient:
        raise InputError(
            f"{target} is a function, which --gradient is not for: hand in jax.value_and_grad of it"
        )
    else:
        program = from_jax(*loaded, name=title, **how)
    return program.model_copy(update={"source": target})


if __name__ == "__main__":
    main(sys.argv[1])
