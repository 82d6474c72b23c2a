"""Data-parallel workers of different speeds: what waiting for each other costs, and what not waiting does.

All three disciplines are one rule with a bound s: a worker starts its iteration k when every worker has ended
iteration k - s - 1. With s = 0 that is bulk synchronous (BSP, and what an all-reduce does), with a finite s stale
synchronous (SSP), without a bound asynchronous (ASP). Workers read and write through a parameter server, or reduce.

Source: Ho et al., More effective distributed ML via a stale synchronous parallel parameter server, NeurIPS 2013.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.errors import InputError

BSP, ASP = 0, None
"""Bounds: no iteration ahead, any number."""


@dataclass(frozen=True, slots=True)
class SyncReport:
    """A run of several workers; arrays by worker and iteration."""

    starts: NDArray[np.float64]
    """[s]"""
    ends: NDArray[np.float64]
    """When its update has arrived [s]."""
    staleness: NDArray[np.int64]
    """Iterations of the slowest worker that are missing from the weights on which the iteration starts."""

    @property
    def waiting(self) -> tuple[float, ...]:
        """Time that each worker waits for others [s]."""
        free = np.concatenate((np.zeros((len(self.ends), 1)), self.ends[:, :-1]), axis=1)
        return tuple((self.starts - free).sum(axis=1).tolist())

    @property
    def throughput(self) -> float:
        """Iterations of all workers per second, until the first worker has no more."""
        until = float(self.ends[:, -1].min())
        return int((self.ends <= until).sum()) / until


def synchronise(seconds: ArrayLike, bound: int | None, exchange: float = 0.0) -> SyncReport:
    """Run iterations that take ``seconds`` [s], by worker and iteration, with at most ``bound`` of them ahead.

    ``exchange`` is the time to hand in gradients and get weights, after each iteration [s].
    Raises: InputError where times are negative, or nothing but zero for a worker, or not a table.
    """
    work = np.asarray(seconds, dtype=np.float64)
    if work.ndim != 2 or not work.size or not np.isfinite(work).all() or work.min() < 0 or exchange < 0:
        raise InputError("give times that are not negative, a row per worker with one for each iteration")
    if bound is not None and bound < 0:
        raise InputError(f"a worker cannot be bound to be {-bound} iterations behind itself; give 0 or more")
    if (work.sum(axis=1) + exchange).min() == 0:
        raise InputError("a worker whose iterations take no time has no end; give all of them times above 0")
    workers, iterations = work.shape
    starts, ends = np.zeros_like(work), np.zeros_like(work)
    free = np.zeros(workers)
    for k in range(iterations):
        everyone = ends[:, k - bound - 1].max() if bound is not None and k > bound else 0.0
        starts[:, k] = np.maximum(free, everyone)
        free = ends[:, k] = starts[:, k] + work[:, k] + exchange
    return SyncReport(starts, ends, _staleness(starts, ends))


def _staleness(starts: NDArray[np.float64], ends: NDArray[np.float64]) -> NDArray[np.int64]:
    """At the start of iteration k, k less what the slowest worker has handed in; 0 where nobody is behind."""
    handed_in = np.stack([np.searchsorted(row, starts, side="right") for row in ends]).min(axis=0)
    missing: NDArray[np.int64] = np.maximum(0, np.arange(starts.shape[1]) - handed_in)
    return missing
