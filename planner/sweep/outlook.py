"""Around one plan: what better hardware, more or fewer devices, and longer sequences would give, planned anew."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import Field

from cluster_specs.changes import KNOBS, changed, knob_paths
from cluster_specs.record import Record
from cluster_specs.sizing import neighbours
from planner.analysis.questions import Question
from planner.analysis.sensitivity import BETTER, better
from planner.errors import InputError
from planner.plans import Pins, Plan
from planner.sweep.answers import Answer, key_of
from planner.sweep.running import EFFICIENCY_THRESHOLD, answer_all

SCHEMA: Final = "meshwright/outlook/1"

LONGEST = 1 << 24
"""Tokens beyond which nobody asks."""


class Replanned(Record):
    """One number of the hardware a tenth better, and the best plan for it."""

    number: str
    time_saved_fraction: float


class Size(Record):
    """The same job on another number of devices."""

    devices: int
    tokens_per_s: float | None
    """None where there is no plan."""
    efficiency: float | None
    """Tokens/s per device over the best of this size and the smaller ones."""
    divides: bool = True
    """False where batch and layers cannot be dealt out to so many devices, whatever their memory."""


class Outlook(Record):
    """What lies around a plan; every figure is a search of its own."""

    schema_version: Literal["meshwright/outlook/1"] = Field(default=SCHEMA, alias="schema")
    replanned: tuple[Replanned, ...]
    """The one that saves most first."""
    sizes: tuple[Size, ...]
    """Ascending."""
    smallest_devices: int | None
    """Fewest devices, of those tried, on which the job fits."""
    threshold: float
    devices_below_threshold: int | None
    """Fewest devices, of those tried, on which efficiency is below the threshold; None where it never is."""
    longest_seq_len: int | None
    """Longest sequence that fits on this cluster with any plan, to the next power of two; None where none does."""


class Work(NamedTuple):
    """Where searches run: see `planner.sweep.running.answer_all`."""

    jobs: int = 1
    engine: str = "local"
    journal: Path | None = None
    progress: Callable[[int, int], None] | None = None

    def ask(self, questions: Mapping[Any, Question]) -> dict[Any, Answer]:
        """Answers under the names of their questions; equal ones are asked once."""
        keys = {name: key_of(question, "time") for name, question in questions.items()}
        answers = answer_all(
            {keys[name]: question for name, question in questions.items()}, "time", **self._asdict()
        )
        return {name: answers[key] for name, key in keys.items()}


def outlook(question: Question, threshold: float = EFFICIENCY_THRESHOLD, work: Work | None = None) -> Outlook:
    """Everything around one question; some twenty searches.

    Raises ``InputError`` for a cluster that cannot be resized.
    """
    work = work or Work()
    better_ones = {
        number: question._replace(cluster=changed(question.cluster, {number: better(number, BETTER)}))
        for number in KNOBS
        if knob_paths(question.cluster, number)
    }
    free = question.pinned(data=None)  # another number of devices needs another number of data ranks
    resized = {c.num_devices: free._replace(cluster=c) for c in neighbours(question.cluster)}
    answers = work.ask({"now": question, **better_ones, **resized})
    sizes = _sizes(answers, sorted(resized))
    below = (s.devices for s in sizes if s.efficiency is not None and s.efficiency < threshold)
    return Outlook(
        replanned=_replanned(answers, list(better_ones)),
        sizes=sizes,
        smallest_devices=next((s.devices for s in sizes if s.tokens_per_s is not None), None),
        threshold=threshold,
        devices_below_threshold=next(below, None),
        longest_seq_len=_longest(question, work),
    )


def question_of(plan: Plan) -> Question:
    """The question whose answer the plan could be: nothing is pinned."""
    return Question(plan.model, plan.cluster, plan.job, Pins())


def _replanned(answers: Mapping[Any, Answer], numbers: list[str]) -> tuple[Replanned, ...]:
    now = _seconds(answers["now"])
    found = [
        Replanned(number=n, time_saved_fraction=1 - then / now)
        for n in numbers
        if now is not None and (then := _seconds(answers[n])) is not None
    ]
    return tuple(sorted(found, key=lambda each: -each.time_saved_fraction))


def _seconds(answer: Answer) -> float | None:
    return None if answer.estimate is None else answer.estimate.step_time_s


def _sizes(answers: Mapping[Any, Answer], counts: list[int]) -> tuple[Size, ...]:
    best = 0.0
    sizes = []
    for n in counts:
        estimate = answers[n].estimate
        if estimate is None:
            sizes.append(Size(devices=n, tokens_per_s=None, efficiency=None, divides=answers[n].divides))
            continue
        rate = estimate.tokens_per_s_per_device
        best = max(best, rate)
        sizes.append(Size(devices=n, tokens_per_s=estimate.tokens_per_s, efficiency=rate / best))
    return tuple(sizes)


def _longest(question: Question, work: Work) -> int | None:
    """By doubling from the job's length while it fits, or halving until it does."""

    def fits(seq_len: int) -> bool:
        try:
            asked = question.working(seq_len=seq_len)
            return work.ask({seq_len: asked})[seq_len].status == "planned"
        except InputError:
            return False  # longer than the positions that the model knows

    length = question.job.seq_len
    if fits(length):
        while length * 2 <= LONGEST and fits(length * 2):
            length *= 2
        return length
    while length > 1:
        length //= 2
        if fits(length):
            return length
    return None
