"""One optimizer step of a plan over time: every action of the pipeline, what follows it, and memory.

The same numbers as in `step_time` and `memory_by_rank`, laid out instead of added up.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.evaluation import sites
from planner.evaluation.cuts import ranks_of
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.memory import DeviceMemory, device_memory, held_activations
from planner.evaluation.stages import StageCost, split_stages
from planner.evaluation.step import StepTime, ports_of, send_seconds, stage_times, step_time
from planner.evaluation.tails import Tail, last_tail, tails_of
from planner.pipeline.activations import Held
from planner.pipeline.dependencies import peak_bytes
from planner.pipeline.generators import generate
from planner.pipeline.ports import Ports
from planner.pipeline.simulator import simulate
from planner.pipeline.timeline import Timeline
from planner.pipeline.trace import Beside
from planner.plans import Parallelism

TRANSIENT = ("activations", "optimizer_temporaries")
"""Components of memory that come and go within the step."""


class StepTimeline(NamedTuple):
    """A step, drawn."""

    timeline: Timeline
    after: tuple[tuple[str, float], ...]
    """What follows the last backward, in turn [s]; with the makespan it adds up to the step."""
    held: Held
    """Activations of a micro-batch [bytes], by stage."""
    resident_bytes: tuple[float, ...]
    """By rank: what is there all the time."""
    optimizer_bytes: tuple[float, ...]
    """By rank: what the optimizer needs beside that, where the peak is in the optimizer."""
    memory_limit_bytes: float
    memory: tuple[DeviceMemory, ...] = ()
    """By rank: what is there at its fullest moment, by component."""
    reduces: tuple[tuple[float, float], ...] = ()
    """By rank: from when to when data-parallel ranks exchange what no work hides [s]; others may still drain."""

    @property
    def step_seconds(self) -> float:
        """The whole step."""
        return self.timeline.makespan + sum(seconds for _, seconds in self.after)

    def memory_over_time(self) -> tuple[tuple[tuple[float, float], ...], ...]:
        """By rank, the bytes on one device from each moment [s] on at which they change."""
        steps = []
        update = self.timeline.makespan + sum(s for name, s in self.after if name == "data")
        rows = zip(
            self.timeline.memory_over_time(self.held), self.resident_bytes, self.optimizer_bytes, strict=True
        )
        for activations, resident, temporaries in rows:
            during = [(moment, resident + held) for moment, held in activations]
            steps.append((*during, (update, resident + temporaries), (self.step_seconds, resident)))
        return tuple(steps)

    def beside(self) -> Iterator[Beside]:
        """What every rank does besides its actions."""
        for rank, (start, end) in enumerate(self.reduces):
            if end > start:
                yield Beside(rank, "data", "data", start, end)
        end = self.timeline.makespan
        for name, seconds in self.after:
            start, end = end, end + seconds
            if seconds and name != "data":
                yield from (
                    Beside(rank, "update", name, start, end) for rank in range(len(self.resident_bytes))
                )


def timeline(
    plan: Parallelism, stages: Sequence[StageCost], sends: Sequence[float], ports: Ports
) -> Timeline:
    """The simulated pipeline of the plan; a plan without one has one rank that alternates F and B."""
    p, v, m = plan.pipeline, plan.virtual_stages, plan.num_microbatches
    times = stage_times(stages)
    if p > 1:
        return simulate(generate(plan.schedule, p, v, m), times, sends, ports=ports)
    return simulate(generate("1f1b" if v == 1 else "interleaved", 1, v, m), times)


class _Step(NamedTuple):
    """What is drawn."""

    stages: Sequence[StageCost]
    sends: Sequence[float]
    tails: Sequence[Tail]
    total: StepTime


def _step(evaluator: Evaluator, plan: Parallelism) -> _Step:
    if evaluator.differs(plan):
        places = evaluator.sites(plan)
        return _Step(
            split_stages([place.cost for place in places], plan, evaluator.software),
            sites.send_seconds(evaluator.whole, places),
            sites.tails_of(evaluator.whole, plan, places),
            sites.step_time(evaluator.whole, plan, places),
        )
    setting, mesh, stages = evaluator.setting, evaluator.mesh(plan), evaluator.stages(plan)
    sends = send_seconds(setting, plan, stages) if plan.pipeline > 1 else ()
    tails, total = tails_of(setting, plan, mesh, stages), step_time(setting, plan, mesh, stages)
    return _Step(split_stages(stages, plan, setting.software), sends, tails, total)


def _memory(evaluator: Evaluator, plan: Parallelism, step: _Step, ran: Timeline) -> list[DeviceMemory]:
    """Of every rank."""
    if evaluator.differs(plan):
        return list(sites.memory_by_rank(plan, evaluator.sites(plan)))
    setting, mesh, limit = evaluator.setting, evaluator.mesh(plan), evaluator.cluster.device.memory
    peaks = peak_bytes(ran.dependencies, *held_activations(plan, step.stages))
    return [
        device_memory([step.stages[s] for s in ss], peak, setting.job, plan, mesh, setting.software, limit)
        for ss, peak in zip(ranks_of(plan), peaks, strict=True)
    ]


def step_timeline(evaluator: Evaluator, plan: Parallelism) -> StepTimeline:
    """The step of a plan whose estimate the evaluator would give.

    Raises ``InputError`` as `Evaluator.estimate`.
    """
    estimate = evaluator.estimate(plan)
    step = _step(evaluator, plan)
    ran = timeline(plan, step.stages, step.sends, ports_of(evaluator.whole))
    ends = [row[-1] for row in ran.ends]
    tail = last_tail(ends, step.tails)
    held = held_activations(plan, step.stages)
    memory = _memory(evaluator, plan, step, ran)
    return StepTimeline(
        timeline=ran,
        memory=tuple(memory),
        reduces=tuple((end, end + mine.data) for end, mine in zip(ends, step.tails, strict=True)),
        after=(
            ("data", tail.data),
            ("optimizer", tail.optimizer),
            ("overhead", step.total.parts["overhead"]),
            ("stragglers", step.total.parts["stragglers"]),
        ),
        held=held,
        resident_bytes=tuple(
            sum(size for name, size in m.components.items() if name not in TRANSIENT) for m in memory
        ),
        optimizer_bytes=tuple(m.components.get("optimizer_temporaries", 0.0) for m in memory),
        memory_limit_bytes=estimate.memory_limit_bytes,
    )
