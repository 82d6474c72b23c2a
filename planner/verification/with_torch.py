"""The exported FSDP2 script trains a small model of the plan's family, on gloo processes, as one process does."""

from collections.abc import Iterator, Mapping, Sequence

from planner.errors import Unsupported
from planner.evaluation import evaluate
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.setting import graph_of
from planner.evaluation.timeline import step_timeline
from planner.exporters.fsdp import to_fsdp2
from planner.exporters.reductions import priced_type
from planner.exporters.stages import has_experts
from planner.graph import has_scans
from planner.pipeline.generators import generate, refusal
from planner.pipeline.schedule import Schedule
from planner.plans import Parallelism, Plan
from planner.verification.miniature import SEQ_LEN, scaled_down
from planner.verification.process import run_program
from planner.verification.record import Comparison, Verification, training_checks

PROCESSES = 8

NEEDS = ("torch", "transformers")

MODULES = "transformers-fsdp2"
"""The stack that the tracked program is, whatever the plan's."""
IN_FP32 = "steps are in fp32 with SGD, where a wrong scale of a gradient shows"

STATES = ("weights", "master_weights", "optimizer")
"""Components of an estimate that stay from step to step."""
TRACKED_STATES = ("Sharded Param", "OptState")
"""The same of torch's tracker."""


def verify_with_torch(plan: Plan, python: str | None = None) -> Verification:
    """Train a small model for two steps under the exported script; losses and parameters must be one process's.

    At full size, the memory of a rank stands beside the predicted one.

    Raises ``Unsupported`` where the exporter refuses the plan or transformers has no such decoder, else as
    `run_program`.
    """
    to_fsdp2(plan)
    if plan.model.architecture != "decoder":
        raise Unsupported("--with torch trains causal language models of Hugging Face transformers only")
    small, left_out = scaled_down(plan, PROCESSES, configured=True)
    task = {
        "family": small.model.family,
        "config": dict(small.model.config),
        "vocab": small.model.config["vocab_size"],
        "seq": SEQ_LEN,
    }
    found = run_program("torch_check", to_fsdp2(small), task, NEEDS, python)
    comparisons, notes = _memory(plan, python)
    p = small.plan
    axes = ["data", "tensor", "pipeline", *(a for a in ("context", "expert") if getattr(p, a) > 1)]
    degrees = ", ".join(f"{axis} {getattr(p, axis)}" for axis in axes)
    return Verification(
        tool="torch",
        versions=(f"torch {found['version']}",),
        what=f"a small {small.model.family} on {found['processes']} gloo processes ({degrees})",
        checks=training_checks(found),
        comparisons=comparisons,
        notes=(*left_out, IN_FP32, *notes),
    )


def _memory(plan: Plan, python: str | None) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Live tensors of a rank of each stage at full size, as torch's tracker counts them under fake tensors; and notes.

    Both numbers are of the program that is tracked: `MODULES`, with the attention that transformers gives them.
    """
    why = _untracked(plan)
    if why:
        return (), (why,)
    task = {"family": plan.model.family, "config": dict(plan.model.config), "seq": plan.job.seq_len}
    found = []
    for rank, actions in enumerate(_schedule(plan.plan).ranks):
        order = [(stage, work.name, micro) for stage, work, micro in actions]
        part = {"part": (rank, plan.plan.pipeline), "order": order}
        found.append(run_program("torch_memory", to_fsdp2(plan), task | part, NEEDS, python))
    tracked = as_tracked(plan, found[0]["attention"])
    return tuple(_compared(tracked, [f["peak_bytes"] for f in found])), tuple(_of_memory(plan, tracked))


def as_tracked(plan: Plan, attention: str) -> Plan:
    """The plan under the stack that the tracked program is; ``attention`` as transformers calls it."""
    kernel = "plain" if attention == "eager" else "flash"
    wire = "fp32" if priced_type(plan) == "fp32" else "bf16"  # as the script has it; fp16 is as wide
    job = plan.job.model_copy(update={"stack": MODULES, "attention": kernel, "reduce_dtype": wire})
    return plan.model_copy(update={"job": job, "estimate": None})


def _compared(plan: Plan, found: Sequence[Mapping[str, float]]) -> Iterator[Comparison]:
    if plan.plan.pipeline == 1:
        estimate = evaluate(plan)
        yield _live("live memory", estimate.tensor_bytes, found[0])
        yield _states("parameters and moments", estimate.memory, found[0])
        return
    memory = step_timeline(Evaluator(plan.model, plan.cluster, plan.job), plan.plan).memory
    for rank, (device, tracked) in enumerate(zip(memory, found, strict=True)):
        yield _live(f"live memory of pipeline rank {rank}", device.tensors, tracked)
        yield _states(f"parameters and moments of pipeline rank {rank}", device.components, tracked)


def _of_memory(plan: Plan, tracked: Plan) -> Iterator[str]:
    """What the compared numbers are of, where that is not what the plan says."""
    yield (
        "memory is that of one rank (of each stage) with fake tensors on the CPU; nothing is dropped, and temporaries "
        "of grouped updates are left out"
    )
    if plan.job.stack != tracked.job.stack:
        yield f"both are of transformers' modules, uncompiled (stack {MODULES}); the plan is for {plan.job.stack}"
    if plan.job.attention_kernel != tracked.job.attention_kernel:
        runs = "writes out all scores" if tracked.job.attention == "plain" else "has fused attention"
        yield f"transformers {runs} for {plan.model.family}: both numbers do, the plan does not"


def _live(name: str, predicted: float, tracked: Mapping[str, float]) -> Comparison:
    return Comparison(name=name, unit="bytes", predicted=predicted, found=tracked["Total"])


def _states(name: str, components: Mapping[str, float], tracked: Mapping[str, float]) -> Comparison:
    ours = sum(components.get(part, 0) for part in STATES)
    theirs = sum(tracked[part] for part in TRACKED_STATES)
    return Comparison(name=name, unit="bytes", predicted=ours, found=theirs)


def _schedule(p: Parallelism) -> Schedule:
    """The order of work; of schedules that do not hold all micro-batches only as many as fill the pipeline twice."""
    holds_all = p.schedule in ("gpipe", "breadth-first")
    count = p.num_microbatches if holds_all else min(p.num_microbatches, 2 * p.pipeline)
    if p.pipeline == 1:
        return generate("gpipe", 1, 1, 1)
    refused = refusal(p.schedule, p.pipeline, p.virtual_stages, count)
    return generate(p.schedule, p.pipeline, p.virtual_stages, p.num_microbatches if refused else count)


def _untracked(plan: Plan) -> str:
    """Why the memory of the plan is not tracked, or nothing."""
    p = plan.plan
    if has_experts(plan):
        return (
            "memory at full size is not tracked for experts: how many tokens one gets is known when it runs"
        )
    if has_scans(graph_of(plan.model, plan.job)):
        return (
            "memory at full size is not tracked for linear recurrences: on a CPU transformers runs plain versions of "
            "their kernels, which keep several times as much"
        )
    if p.data * p.context == 1 or p.zero_stage == 0:
        return "memory at full size is tracked where data-parallel ranks share states"
    return ""
