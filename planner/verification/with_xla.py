"""XLA compiles the exported plan at full size for the real TPU slice, ahead of time; its numbers beside ours."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from planner.errors import InputError, Unsupported
from planner.evaluation import evaluate
from planner.exporters.jax import to_jax
from planner.exporters.placements import layout_of
from planner.plans import Estimate, Plan
from planner.verification.arrays import task_of
from planner.verification.process import run_program
from planner.verification.record import Check, Comparison, Verification

GENERATIONS: Mapping[str, str] = MappingProxyType(
    {
        "tpu-v2": "v2",
        "tpu-v3": "v3",
        "tpu-v4": "v4",
        "tpu-v5e": "v5e",
        "tpu-v5p": "v5p",
        "tpu-v6e": "v6e",
        "tpu-v7x": "tpu7x",
    }
)
"""Our name of a TPU -> libtpu's."""

CHIP_CONFIGS: Mapping[str, str] = MappingProxyType({"tpu-v4": "megacore"})
"""TPUs whose chips libtpu shows as two devices unless it is told to join them."""

NO_TPU: Mapping[str, str] = MappingProxyType(
    {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
)
"""Environment of a compiler that looks for no TPU and shares the machine with others of its kind."""

OURS: Mapping[str, str] = MappingProxyType({"p2p": "send"})
"""XLA's name of a kind of communication -> ours."""

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


def verify_with_xla(plan: Plan, python: str | None = None) -> Verification:
    """Compile a training step of ``plan`` with libtpu; memory and collectives beside the predicted ones.

    Raises ``InputError`` where the cluster is no TPU slice, ``Unsupported`` for what the program cannot say (as
    `to_jax`, and experts, fp8, optimizers but AdamW and SGD), else as `run_program`.
    """
    found = compiled_step(plan, python)
    estimate = plan.estimate or evaluate(plan)
    versions = tuple(f"{name} {version}" for name, version in found["versions"].items())
    slices = f"{plan.cluster.nodes} slices of " if plan.cluster.nodes > 1 else ""
    return Verification(
        tool="xla-tpu",
        versions=versions,
        what=f"a training step of {plan.model.name}, compiled for {slices}TPU {_topology(plan)}",
        checks=(_fits(plan, found),),
        comparisons=tuple(_comparisons(found, estimate)),
        notes=tuple(_notes(plan, found)),
    )


def compiled_step(plan: Plan, python: str | None = None) -> dict[str, Any]:
    """Versions, memory and collectives of the compiled step, or why the compiler refuses it; raises as above."""
    topology = _topology(plan)
    _check(plan)
    task = task_of(layout_of(plan, "jax"), plan)
    task |= {"dtype": DTYPES[plan.job.precision], "topology": topology, "slices": plan.cluster.nodes}
    task["stored"] = "float32" if plan.job.master_weights else task["dtype"]
    task["attention"] = plan.job.attention_kernel
    task["chip_config"] = CHIP_CONFIGS.get(plan.cluster.device.name, "")
    return run_program("jax_compile", to_jax(plan), task, ("jax", "libtpu"), python, environment=NO_TPU)


def _topology(plan: Plan) -> str:
    """Name of the slice as libtpu knows it."""
    cluster = plan.cluster
    if cluster.torus is None or cluster.device.name not in GENERATIONS:
        raise InputError(f"--with xla-tpu compiles for TPU slices; {cluster.name} has {cluster.device.name}")
    shape = "x".join(map(str, cluster.torus.shape))
    return f"{GENERATIONS[cluster.device.name]}:{shape}"


def _check(plan: Plan) -> None:
    if plan.job.precision not in DTYPES:
        raise Unsupported(f"--with xla-tpu compiles {', '.join(DTYPES)}, not {plan.job.precision}")
    if plan.job.optimizer not in ("adamw", "sgd"):
        raise Unsupported(f"--with xla-tpu compiles adamw and sgd, not {plan.job.optimizer}")
    if plan.plan.expert > 1 or any(
        count for name, count in plan.model.config.items() if name.endswith("experts")
    ):
        raise Unsupported(
            "--with xla-tpu has no kernel that routes tokens to experts: memory would be another's"
        )


def _fits(plan: Plan, found: dict[str, Any]) -> Check:
    """The compiler's memory against what it has, or the device where it does not say."""
    refused = found.get("refused")
    limit = refused["limit_bytes"] if refused else plan.cluster.device.memory
    peak = refused["peak_bytes"] if refused else found["assigned_bytes"]
    return Check(
        name="memory of a device [bytes], against what there is",
        expected=limit,
        found=peak,
        error=max(0.0, peak / limit - 1),
        limit=0,
    )


def _comparisons(found: dict[str, Any], estimate: Estimate) -> Iterator[Comparison]:
    peak = (found.get("refused") or found)["peak_bytes"]
    yield Comparison(name="live memory", unit="bytes", predicted=estimate.tensor_bytes, found=peak)
    if "assigned_bytes" in found:
        assigned = found["assigned_bytes"]
        yield Comparison(name="with holes", unit="bytes", predicted=estimate.memory_bytes, found=assigned)
    if found.get("collectives") is None:
        return
    theirs = {OURS.get(kind, kind): total["sent_bytes"] for kind, total in found["collectives"].items()}
    ours = estimate.communication
    for kind in sorted({*ours, *theirs}):
        yield Comparison(
            name=f"sent by {kind}", unit="bytes", predicted=ours.get(kind, 0), found=theirs.get(kind, 0)
        )
    yield Comparison(
        name="sent in all", unit="bytes", predicted=sum(ours.values()), found=sum(theirs.values())
    )


def _notes(plan: Plan, found: dict[str, Any]) -> Iterator[str]:
    yield "parameters are kept in fp32 and cast where they are used; layers that are alike run as one loop"
    if "refused" in found:
        yield (
            "the compiler refuses the step for its memory, so its collectives are not known; what it needs is what "
            "the compiler gives up with: for devices with room, such a step has been compiled into a third less"
        )
    elif found["collectives"] is None:
        yield "this libtpu cannot print the program for this slice, so its collectives are not known"
    elif "p2p" in found["collectives"]:
        yield (
            "XLA turns gathers and scatters beside products into rings, which count as what they do; sent by send is "
            "what they send beyond that: n + 1 parts of n, of which two are zeros or are not read"
        )
    if plan.plan.context > 1:
        yield "attention across context ranks gathers keys and values, whatever the plan's exchange"
