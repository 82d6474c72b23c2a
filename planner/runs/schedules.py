"""Schedules of the user's own: PyTorch's CSV in a file, or a Python function that makes one.

A function takes the numbers of pipeline ranks, of stages on each rank and of micro-batches, and returns the orders of
all ranks: CSV text, or a list of actions such as ``2F0`` for each rank.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.pipeline.asynchronous import ASYNCHRONOUS
from planner.pipeline.generators import usual_name
from planner.pipeline.schedule import from_csv, to_csv
from planner.runs.files import read_schedule

Numbers = Callable[[], tuple[int, int, int]]
"""Pipeline ranks, stages on each and micro-batches, for a function; raises `InputError` where they are not known."""


def numbers_of(
    pipeline: int | None,
    virtual_stages: int | None,
    data: int | None,
    micro_batch: int | None,
    global_batch: int | None,
) -> tuple[int, int, int]:
    """Ranks, stages on each and micro-batches where they are pinned; raises ``InputError`` where they are not."""
    if pipeline is None or data is None or micro_batch is None or global_batch is None:
        raise InputError(
            "a function makes a schedule for given numbers: pin pipeline, data and micro-batch with it"
        )
    return pipeline, virtual_stages or 1, global_batch // (data * micro_batch)


def own_schedule(name: str, numbers: Numbers, *, flushed: bool = True) -> str:
    """What a plan holds for ``name``: the text of ``FILE.csv`` or of what ``FILE.py:FUNCTION`` makes; else our name.

    Raises ``InputError`` where the file, the function or what it returns is no schedule, or where the name is that of
    a pipeline that never flushes and it has to be ``flushed``.
    """
    path, _, function = name.rpartition(":")
    if path.lower().endswith(".py"):
        return written(_loaded(Path(path), function), *numbers())
    if name.lower().endswith(".py"):
        raise InputError(f"--schedule {name}: name the function in it too, as {name}:FUNCTION")
    if flushed and name in ASYNCHRONOUS:
        raise InputError(
            f"{name} never flushes, and the steps of plans do; meshwright simulate --schedule {name} runs it"
        )
    return read_schedule(Path(name)) if name.lower().endswith(".csv") else usual_name(name)


def written(make: Callable[[int, int, int], Any], ranks: int, virtual_stages: int, microbatches: int) -> str:
    """The schedule that a user's function makes, as PyTorch's CSV.

    Raises ``InputError`` where it fails, or returns no complete schedule for these numbers.
    """
    asked = f"{ranks} ranks with {virtual_stages} stages each and {microbatches} micro-batches"
    name = getattr(make, "__name__", "the function")
    try:
        made = make(ranks, virtual_stages, microbatches)
    except Exception as error:  # whatever the user's own code raises
        raise InputError(f"schedule {name} failed for {asked}: {type(error).__name__}: {error}") from error
    rows = made.splitlines() if isinstance(made, str) else made
    try:
        lines = [row if isinstance(row, str) else ",".join(map(str, row)) for row in rows]
    except TypeError:
        raise InputError(f"schedule {name} returned {made!r}; give a list of actions for each rank") from None
    try:
        schedule = from_csv("\n".join(lines))
    except InputError as error:
        raise InputError(f"schedule {name} for {asked}: {error}") from error
    stages = ranks * virtual_stages
    got = (schedule.num_ranks, schedule.num_stages, schedule.num_microbatches)
    if got != (ranks, stages, microbatches):
        raise InputError(
            f"schedule {name} was asked for {asked}, and made {got[0]} ranks with {got[1]} stages in all and "
            f"{got[2]} micro-batches"
        )
    return to_csv(schedule)


def _loaded(path: Path, name: str) -> Callable[[int, int, int], Any]:
    if not path.is_file():
        raise InputError(f"--schedule {path}:{name}: there is no file {path}")
    spec = importlib.util.spec_from_file_location("users_schedule", path)
    assert spec is not None  # a file that ends with .py has one
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's own code raises
        raise InputError(f"--schedule {path}: {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    if not callable(function):
        known = ", ".join(n for n, value in sorted(vars(module).items()) if callable(value) and n[0] != "_")
        raise InputError(
            f"--schedule {path}:{name}: {path} has no function {name!r}; it has {known or 'none'}"
        )
    found: Callable[[int, int, int], Any] = function
    return found
