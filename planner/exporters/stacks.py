"""Which software a file starts: its header says so where the plan was priced for another."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from cluster_specs.errors import InputError
from cluster_specs.units import GIB
from planner.evaluation import evaluate
from planner.exporters import torchtitan
from planner.plans import Estimate, Plan

JAX = ("jax-xla", "libtpu-0.0.51")
TRANSFORMERS = ("hf-fsdp",)
TORCHTITAN = ("torch-compiled-loss", "torch-fsdp2", "torch-async-tp")

RUNS_AS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "jax": JAX,
        "fsdp2": ("transformers-fsdp2", "torch-eager"),
        "fsdp1": TRANSFORMERS,
        "accelerate": TRANSFORMERS,
        "accelerate-fsdp1": TRANSFORMERS,
        "hf-trainer": TRANSFORMERS,
        "deepspeed": ("deepspeed", "deepspeed-liger", "deepspeed-transformers"),
        torchtitan.TARGET: TORCHTITAN,
        torchtitan.OLD_TARGET: TORCHTITAN,
        "megatron-lm": ("megatron",),
        "megatron-bridge": ("nemo", "megatron"),
        "maxtext": JAX,
        "levanter": ("levanter", "levanter-fa4"),
        "nanotron": ("nanotron", "nanotron-keeping", "nanotron-checked", "nanotron-polling"),
        "axolotl": TRANSFORMERS,
    }
)
"""Target -> stacks that its files start, the usual one first.

The scripts compile nothing, nor do accelerate, Trainer and axolotl unless they are told to; torchtitan's files compile
what `torchtitan.compiled` says.
"""


def started(plan: Plan, target: str) -> tuple[str, ...]:
    """Stacks that the files of ``target`` start, the usual one first."""
    if target not in (torchtitan.TARGET, torchtitan.OLD_TARGET) or "model" in torchtitan.compiled(plan):
        return RUNS_AS.get(target, ())
    return (plan.job.stack,) if torchtitan.compiled(plan) else ("torch-eager",)


def priced_apart(plan: Plan, target: str, lacking: Sequence[str] = ()) -> Iterator[str]:
    """Sentences for the header of a file of ``target``: its time and memory as what it starts has them.

    None where they are those that ``plan`` was priced with. ``lacking`` are axes over which the target splits nothing,
    which the next plan must not either.
    """
    stacks = started(plan, target)
    if not stacks or plan.job.stack in stacks:
        return
    usual = stacks[0]
    options = " ".join((f"--stack {usual}", *(f"--no-{axis}" for axis in lacking)))
    priced = f"predicted for {plan.job.stack}, while this starts {usual}"
    try:
        found = evaluate(plan.model_copy(update={"job": plan.job.model_copy(update={"stack": usual})}))
    except InputError:
        yield f"{priced}: plan with {options} for its numbers"
        return
    if plan.estimate is not None and _same(found, plan.estimate):
        return
    room = "" if found.fits else f", more than the {found.memory_limit_bytes / GIB:.1f} GiB that there are"
    yield (
        f"{priced}, predicted to take {found.step_time_s:.4g} s a step and {found.memory_bytes / GIB:.1f} GiB{room}: "
        f"plan with {options} for its best"
    )


def _same(one: Estimate, other: Estimate) -> bool:
    return (one.step_time_s, one.memory_bytes) == (other.step_time_s, other.memory_bytes)
