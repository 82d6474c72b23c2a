"""Two plans line by line: which is better, by how much, and which part explains it."""

from collections.abc import Iterator, Mapping
from typing import Literal

from cluster_specs.record import Record
from cluster_specs.units import SMALLEST_CHANGE, format_change, format_seconds
from planner.analysis.questions import known
from planner.models.catalog import counted
from planner.plans import Job, Parallelism, Plan
from planner.search import doubts

EQUAL_WITHIN = SMALLEST_CHANGE
"""Relative difference of throughput below which two plans are called equal."""

PLAIN_RATIO = 1.01
"""Ratio of throughput from which it is named as such."""

Verdict = Literal["A", "B", "neither"]


class Difference(Record):
    """One line in which two plans differ."""

    name: str
    a: str | float
    b: str | float


class Comparison(Record):
    """What sets two plans apart. Differences of numbers are B - A."""

    better: Verdict
    """The one that fits and has the higher throughput."""
    verdict: str
    """Which is better, by how much, and why."""
    tokens_per_s_ratio: float
    """Throughput of B over that of A."""
    memory_difference_bytes: float
    choices: tuple[Difference, ...]
    """Degrees, choices, job, model and cluster, where they differ."""
    time_s: tuple[Difference, ...]
    """Parts of the step [s], the largest difference first."""
    memory_bytes: tuple[Difference, ...]
    """Components on the fullest device, the largest difference first."""
    communication_bytes: tuple[Difference, ...]
    """Sent by one device in a step, by collective, the largest difference first."""
    warnings: tuple[str, ...] = ()
    """What the numbers of either rest on that nobody measured (`planner.search.doubts`)."""


def compare(a: Plan, b: Plan) -> Comparison:
    """Compare two plans that have estimates; raises ``InputError`` for one without."""
    first, second = known(a), known(b)
    ratio = second.tokens_per_s / first.tokens_per_s
    time_s = _numbers(first.time, second.time)
    better = _better(first.fits, second.fits, ratio)
    return Comparison(
        better=better,
        verdict=_verdict(a, b, better, ratio),
        tokens_per_s_ratio=ratio,
        memory_difference_bytes=second.memory_bytes - first.memory_bytes,
        choices=tuple(_choices(a, b)),
        time_s=time_s,
        memory_bytes=_numbers(first.memory, second.memory),
        communication_bytes=_numbers(first.communication, second.communication),
        warnings=_warnings(a, b),
    )


def _warnings(a: Plan, b: Plan) -> tuple[str, ...]:
    """What is said of both, and then what is said of one, with its letter."""
    first, second = doubts(a), doubts(b)
    both = [said for said in first if said in second]
    alone = [("A", said) for said in first] + [("B", said) for said in second]
    return (*both, *(f"{letter}: {said}" for letter, said in alone if said not in both))


def _better(a_fits: bool, b_fits: bool, ratio: float) -> Verdict:
    if a_fits != b_fits:
        return "A" if a_fits else "B"
    if abs(ratio - 1) <= EQUAL_WITHIN:
        return "neither"
    return "B" if ratio > 1 else "A"


def _verdict(a: Plan, b: Plan, better: Verdict, ratio: float) -> str:
    first, second = known(a), known(b)
    if better == "neither":
        rate = f"{first.tokens_per_s:,.0f} {counted(a.model)}/s"
        return f"Both do {rate}; nothing sets them apart by more than {EQUAL_WITHIN:.1%}."
    faster, gain = ("B", ratio) if ratio > 1 else ("A", 1 / ratio)
    speed = f"{faster} is {_faster(gain)}"
    if first.fits != second.fits:
        return f"{better} fits and the other does not; otherwise {speed}{_because(a, b, faster)}."
    neither = "" if first.fits else " (neither fits)"
    return f"{speed}{_because(a, b, faster)}{neither}."


def _faster(ratio: float) -> str:
    """A ratio of throughputs above one, in per cent where two digits would be ``1.00``."""
    return (
        f"{ratio:.2f} times as fast"
        if ratio >= PLAIN_RATIO
        else f"{format_change(ratio - 1).lstrip('+')} faster"
    )


def _because(a: Plan, b: Plan, faster: str) -> str:
    """The part of the time per token that differs most in favour of the faster."""
    fast, slow = (known(b), known(a)) if faster == "B" else (known(a), known(b))
    scale = fast.step_time_s * fast.tokens_per_s / (slow.step_time_s * slow.tokens_per_s)  # to equal tokens
    parts = {*fast.time, *slow.time}
    losses = {p: slow.time.get(p, 0.0) * scale - fast.time.get(p, 0.0) for p in parts}
    worst = max(sorted(losses), key=lambda p: losses[p])
    total = sum(losses.values())
    regained = losses[worst] - total
    share = (
        f"{format_seconds(losses[worst])} of the {format_seconds(total)}"
        if regained <= EQUAL_WITHIN * total
        else f"{format_seconds(losses[worst])}, of which other parts give back {format_seconds(regained)}"
    )
    tokens = "" if abs(scale - 1) < 1e-9 else " at equal tokens"
    return f", mostly by {worst.replace('_', ' ')} ({share}{tokens})"


def _choices(a: Plan, b: Plan) -> Iterator[Difference]:
    choices = [name for name in Parallelism.model_fields if name != "stages"]
    for name, first, second in (
        ("model", a.model.name, b.model.name),
        ("cluster", a.cluster.name, b.cluster.name),
        *((name, getattr(a.job, name), getattr(b.job, name)) for name in Job.model_fields),
        *((name, getattr(a.plan, name), getattr(b.plan, name)) for name in choices),
        ("layers_per_stage", _layers(a), _layers(b)),
    ):
        if first != second:
            yield Difference(name=name, a=_shown(first), b=_shown(second))


def _layers(plan: Plan) -> tuple[int, ...]:
    return tuple(stage.blocks[1] - stage.blocks[0] for stage in plan.plan.stages)


def _shown(value: object) -> str | float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "none"
    return str(value)


def _numbers(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Difference, ...]:
    lines = [Difference(name=name, a=a.get(name, 0.0), b=b.get(name, 0.0)) for name in sorted({*a, *b})]
    differing = [line for line in lines if line.a != line.b]
    return tuple(sorted(differing, key=lambda line: -abs(float(line.b) - float(line.a))))
