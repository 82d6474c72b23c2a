"""Runs whose degrees an optimiser chose and their source does not print: the fastest that fits, as it would have."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from planner.errors import InputError, PlannerError
from planner.plans import Estimate, Plan
from planner.runs.mapping import plan_from_run
from planner.runs.record import RunFile
from planner.runs.unpublished import Told
from planner.runs.vocabulary import AUTOMATIC

MOST_MICRO_BATCH = 64
"""Sequences of the largest micro-batch that is tried."""


def as_chosen(run: RunFile, evaluate: Callable[[Plan], Estimate]) -> Told:
    """The run's plan, priced; of a run whose degrees an optimiser chose the fastest that fits.

    Raises ``InputError`` where the run has no plan.
    """
    found = list(_choices(run, evaluate)) if _chosen_by_optimiser(run) else []
    if found:
        return min(found, key=lambda told: (not told.estimate.fits, told.estimate.step_time_s))
    plan, assumed = plan_from_run(run)
    return Told(plan, evaluate(plan), assumed)


def _chosen_by_optimiser(run: RunFile) -> bool:
    parallel = run.parallel
    automatic = re.fullmatch(AUTOMATIC, parallel.sharding or "", re.IGNORECASE) is not None
    return automatic and parallel.dp is None and parallel.tp is None and run.hardware.n_gpus is not None


def _choices(run: RunFile, evaluate: Callable[[Plan], Estimate]) -> Iterator[Told]:
    """Every split of the devices in powers of two, with every micro-batch where none is printed."""
    for degrees in _degrees(run):
        parallel = run.parallel.model_copy(update=dict(degrees))
        with suppress(InputError, PlannerError):
            plan, assumed = plan_from_run(run.model_copy(update={"parallel": parallel}))
            chosen = (f"{field}={value} (fastest that fits)" for field, value in degrees.items())
            yield Told(plan, evaluate(plan), (*assumed, *chosen))


def _degrees(run: RunFile) -> Iterator[Mapping[str, Any]]:
    parallel = run.parallel
    devices = (run.hardware.n_gpus or 1) * (run.hardware.devices_per_chip or 1)
    ranks, uneven = divmod(devices, (parallel.pp or 1) * (parallel.cp or 1))
    if uneven:
        return
    batches = [{}] if parallel.micro_batch else [{"micro_batch": size} for size in _powers(MOST_MICRO_BATCH)]
    for tensor in _powers(ranks):
        if ranks % tensor == 0:
            for batch in batches:
                yield {"dp": ranks // tensor, "tp": tensor, **batch}


def _powers(most: int) -> Iterator[int]:
    return (1 << bit for bit in range(most.bit_length()))
