"""The exported FSDP2 script trains a small model of the plan's family, on gloo processes, as one process does."""

from collections.abc import Iterator

from planner.errors import Unsupported
from planner.evaluation import evaluate
from planner.exporters.fsdp import to_fsdp2
from planner.plans import Plan
from planner.verification.miniature import SEQ_LEN, scaled_down
from planner.verification.process import run_program
from planner.verification.record import Comparison, Verification, training_checks

PROCESSES = 8

NEEDS = ("torch", "transformers")

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
    p = small.plan
    axes = ["data", "tensor", "pipeline", *(a for a in ("context", "expert") if getattr(p, a) > 1)]
    degrees = ", ".join(f"{axis} {getattr(p, axis)}" for axis in axes)
    return Verification(
        tool="torch",
        versions=(f"torch {found['version']}",),
        what=f"a small {small.model.family} on {found['processes']} gloo processes ({degrees})",
        checks=training_checks(found),
        comparisons=tuple(_memory(plan, python)),
        notes=(*left_out, *_notes(plan)),
    )


def _memory(plan: Plan, python: str | None) -> Iterator[Comparison]:
    """Live tensors of a rank at full size, as torch's tracker counts them under fake tensors."""
    if plan.plan.pipeline > 1:
        return
    task = {"family": plan.model.family, "config": dict(plan.model.config), "seq": plan.job.seq_len}
    found = run_program("torch_memory", to_fsdp2(plan), task, NEEDS, python)["peak_bytes"]
    estimate = plan.estimate or evaluate(plan)
    yield Comparison(name="live memory", unit="bytes", predicted=estimate.tensor_bytes, found=found["Total"])
    states = sum(estimate.memory.get(part, 0) for part in STATES)
    tracked = sum(found[part] for part in TRACKED_STATES)
    yield Comparison(name="parameters and moments", unit="bytes", predicted=states, found=tracked)


def _notes(plan: Plan) -> Iterator[str]:
    yield "steps are in fp32 with SGD, where a wrong scale of a gradient shows"
    if plan.plan.pipeline > 1:
        yield "memory at full size is tracked without pipelines only"
    else:
        yield "memory is that of one rank with fake tensors on the CPU; temporaries of grouped updates are left out"
