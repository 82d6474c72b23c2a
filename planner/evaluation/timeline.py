"""One optimizer step of a plan over time: every action of the pipeline, what follows it, and memory.

The same numbers as in `step_time` and `memory_by_rank`, laid out instead of added up.
"""

from collections.abc import Sequence
from typing import NamedTuple

from planner.evaluation.evaluator import Evaluator
from planner.evaluation.memory import device_memory, held_activations
from planner.evaluation.setting import Setting, ranks_of
from planner.evaluation.stages import StageCost
from planner.evaluation.step import send_seconds, slowest_tail, step_time
from planner.pipeline.activations import Held
from planner.pipeline.dependencies import peak_bytes
from planner.pipeline.generators import generate
from planner.pipeline.simulator import StageTimes, simulate
from planner.pipeline.timeline import Timeline
from planner.plans import Parallelism
from planner.sharding.mesh import Mesh

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


def timeline(setting: Setting, plan: Parallelism, mesh: Mesh, stages: Sequence[StageCost]) -> Timeline:
    """The simulated pipeline of the plan; a plan without one has one rank that alternates F and B."""
    p, v, m = plan.pipeline, plan.virtual_stages, plan.num_microbatches
    times = StageTimes(
        [s.forward for s in stages], [s.backward_input for s in stages], [s.backward_weight for s in stages]
    )
    if p > 1:
        return simulate(generate(plan.schedule, p, v, m), times, send_seconds(setting, plan, stages))
    return simulate(generate("1f1b" if v == 1 else "interleaved", 1, v, m), times)


def step_timeline(evaluator: Evaluator, plan: Parallelism) -> StepTimeline:
    """The step of a plan whose estimate the evaluator would give.

    Raises ``InputError`` as `Evaluator.estimate`.
    """
    evaluator.estimate(plan)
    setting, mesh, stages = evaluator.setting, evaluator.mesh(plan), evaluator.stages(plan)
    ran = timeline(setting, plan, mesh, stages)
    step, tail = step_time(setting, plan, mesh, stages), slowest_tail(setting, plan, mesh, stages)
    held = held_activations(plan, stages)
    ranks, limit = ranks_of(plan), evaluator.cluster.device.memory
    peaks = peak_bytes(ran.dependencies, *held)
    memory = [
        device_memory([stages[s] for s in ss], peak, setting.job, plan, mesh, setting.software, limit)
        for ss, peak in zip(ranks, peaks, strict=True)
    ]
    return StepTimeline(
        timeline=ran,
        after=(
            ("data", tail.data),
            ("optimizer", tail.optimizer),
            ("overhead", step.parts["overhead"]),
            ("stragglers", step.parts["stragglers"]),
        ),
        held=held,
        resident_bytes=tuple(
            sum(size for name, size in m.components.items() if name not in TRANSIENT) for m in memory
        ),
        optimizer_bytes=tuple(m.components.get("optimizer_temporaries", 0.0) for m in memory),
        memory_limit_bytes=limit,
    )
