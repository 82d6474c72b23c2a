"""What several targets leave to the training script, and how they name the data-parallel ranks."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from planner.errors import Unsupported
from planner.exporters.header import describe
from planner.exporters.placements import data_mesh
from planner.exporters.stages import policies_of
from planner.plans import Parallelism, Plan

SCRIPTS_OWN: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("adamw", "adamw8bit", "adamw_bnb_8bit", "sgd", "adafactor", "muon")}
)
"""Optimizers of a target whose training script makes the optimizer."""

TORCH_PRECISIONS: Mapping[str, str] = MappingProxyType({"bf16": "bfloat16", "fp32": "float32"})


def shard_and_replicate(plan: Parallelism) -> tuple[int, int]:
    """Data-parallel ranks (context ranks aside) over which states are sharded, and copies of them.

    Raises ``Unsupported`` where the sharding group cuts a context- or expert-parallel group.
    """
    mesh = data_mesh(plan)
    shard = mesh.shard * (mesh.expert if mesh.over_expert else 1)
    return shard, plan.data // shard


def policy_of(plan: Parallelism) -> str:
    """The one recomputation policy; `planner.exporters.limits` has refused plans with several."""
    (policy,) = policies_of(plan)
    return policy


def refuse_replicas_beside_splits(plan: Parallelism, target: str) -> None:
    """Raise ``Unsupported`` for whole copies of the states beside other parallelism, which torch's DDP is alone."""
    split = plan.tensor * plan.context * plan.pipeline * plan.expert
    if plan.data > 1 and split > 1 and shard_and_replicate(plan)[0] == 1:
        raise Unsupported(
            f"target {target} replicates states only where data parallelism is alone; plan again with --zero 3"
        )


def refuse_context_without_shards(plan: Parallelism, target: str) -> None:
    """Raise ``Unsupported`` where states are not sharded over context ranks, which FSDP always does."""
    if plan.context > 1 and plan.zero_stage == 0:
        raise Unsupported(
            f"target {target} shards states over context ranks; plan again with --zero 3, or with --context 1"
        )


def script_notes(plan: Plan) -> Iterator[str]:
    """What the training script must do itself, for configurations that do not hold the batch."""
    p = plan.plan
    yield (
        f"In the script: {p.micro_batch} sequences of {plan.job.seq_len} tokens a process and micro-batch, "
        f"{p.num_microbatches} micro-batches a step, optimizer {plan.job.optimizer}."
    )
    if plan.job.fused_loss:
        yield "In the script: compute the loss in chunks, so that whole logits never exist."


def render_strings(names: Iterable[str]) -> str:
    """A tuple of strings as code."""
    return render_tuple(f'"{name}"' for name in names)


def render_tuple(items: Iterable[str]) -> str:
    """A tuple as code."""
    found = tuple(items)
    return f"({found[0]},)" if len(found) == 1 else f"({', '.join(found)})"


def commented(lines: Iterator[str] | tuple[str, ...]) -> str:
    """``lines`` as comments of Python, YAML, TOML or a shell."""
    return "".join(f"# {line}\n" for line in lines)


def notes_file(plan: Plan, *notes: str) -> str:
    """Header and notes as plain text, for targets whose format has no comments."""
    return "".join(f"{line}\n" for line in (*describe(plan), *notes))
