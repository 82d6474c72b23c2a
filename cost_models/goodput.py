"""What failures take from a training run: checkpoints, work done twice, restarts, waiting for repairs.

Failures come at random with a constant rate, and each throws the run back to its last checkpoint. Defaults are
published figures, in ``data/failures.toml``.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from cluster_specs.errors import InputError
from cost_models.constants import constants


class FailureRates(NamedTuple):
    """Failures per second of the whole run."""

    interruptions: float
    """Anything that stops training."""
    repairs: float
    """Of these, what takes a node away until it is repaired."""


class Recovery(NamedTuple):
    """What the run does against failures [s]."""

    checkpoint: float
    """Training stands still this long for each checkpoint."""
    interval: float
    """Training between two checkpoints."""
    restart: float
    """From a failure to training again, the read of the checkpoint included."""


class Goodput(NamedTuple):
    """Shares of the wall-clock, which add up to 1."""

    useful: float
    checkpoints: float
    rework: float
    """Training that a failure undid."""
    restarts: float
    repairs: float
    """Standing still until a node comes back, for want of a spare."""
    stragglers: float

    @property
    def lost(self) -> Mapping[str, float]:
        """Every share that is not useful, by name."""
        return {name: share for name, share in self._asdict().items() if name != "useful" and share > 0}


def default(name: str) -> float:
    """A constant of ``data/failures.toml`` [s, bytes/s or a share]."""
    return float(constants("failures")[name])


def source(name: str) -> str:
    """Where a constant of ``data/failures.toml`` comes from."""
    return str(constants("failures")["sources"][name])


def failure_rates(
    devices: int, nodes: int, device_mtbf: float, node_mtbf: float, hardware_share: float
) -> FailureRates:
    """Rates of a job that stops when any of its parts fails: ``devices/MTBF + nodes/MTBF`` [1/s].

    ``hardware_share`` of the interruptions take a node away. Rates of independent parts add up.
    """
    rate = devices / device_mtbf + nodes / node_mtbf
    return FailureRates(rate, hardware_share * rate)


def optimal_interval(checkpoint: float, rate: float) -> float:
    """Training between checkpoints that loses least [s], for checkpoints of ``checkpoint`` s and ``rate`` 1/s.

    Young's ``sqrt(2 d M)`` with Daly's higher-order terms: ``sqrt(2 d M) (1 + sqrt(d/2M)/3 + (d/2M)/9) - d``,
    and ``M = 1/rate`` where ``d >= 2M``. Infinite where nothing fails.
    Source: Young, CACM 17(9), 1974; Daly, Future Generation Computer Systems 22(3), 2006, equation 37.
    """
    if rate <= 0:
        return math.inf
    mean = 1 / rate
    if checkpoint >= 2 * mean:
        return mean
    share = checkpoint / (2 * mean)
    return math.sqrt(2 * checkpoint * mean) * (1 + math.sqrt(share) / 3 + share / 9) - checkpoint


def goodput(
    rates: FailureRates,
    recovery: Recovery,
    repair: float = 0.0,
    spares: int = 0,
    straggler_fraction: float = 0.0,
) -> Goodput:
    """Shares of the wall-clock in the long run.

    A stretch of ``a = interval + checkpoint`` takes ``M (e^(a/M) - 1)`` of running and ``(e^(a/M) - 1)``
    restarts of ``M (e^(R/M) - 1)`` each, failures during a restart included (Daly). ``spares`` nodes take over
    at once; a failure that finds none waits for the next node to come back: the share of time without a spare
    is Erlang's loss formula with ``spares + 1`` servers and a load of ``repairs x repair``, whatever the
    distribution of the repair time. Left out: failures while the job waits, and spares that fail.
    Raises ``InputError`` for an interval that is not positive.
    Source: Daly, Future Generation Computer Systems 22(3), 2006, equation 20; Erlang's loss formula.
    """
    if not recovery.interval > 0:
        raise InputError(f"a checkpoint interval is positive, found {recovery.interval:g} s")
    waiting = erlang_loss(spares + 1, rates.repairs * repair)
    rate = rates.interruptions
    if rate <= 0:
        stretch = 1.0 if math.isinf(recovery.interval) else recovery.interval + recovery.checkpoint
        useful = 1.0 if math.isinf(recovery.interval) else recovery.interval / stretch
        return Goodput(useful * (1 - straggler_fraction), 1 - useful, 0, 0, 0, useful * straggler_fraction)
    attempt = recovery.interval + recovery.checkpoint
    failed = math.expm1(min(attempt * rate, _OVERFLOW))
    running = failed / rate
    restarting = failed * math.expm1(min(recovery.restart * rate, _OVERFLOW)) / rate
    share = (1 - waiting) / (running + restarting)
    training = recovery.interval * share
    return Goodput(
        useful=training * (1 - straggler_fraction),
        checkpoints=recovery.checkpoint * share,
        rework=(running - attempt) * share,
        restarts=restarting * share,
        repairs=waiting,
        stragglers=training * straggler_fraction,
    )


_OVERFLOW = 300.0
"""Exponents beyond which nothing is ever finished."""


def erlang_loss(servers: int, load: float) -> float:
    """Share of time in which all ``servers`` are busy: ``B(s) = a B(s-1) / (s + a B(s-1))``, ``B(0) = 1``.

    Source: Erlang's loss formula, by its usual recursion.
    """
    blocked = 1.0
    for server in range(1, servers + 1):
        blocked = load * blocked / (server + load * blocked)
    return blocked
