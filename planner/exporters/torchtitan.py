"""Plan -> torchtitan: TOML for versions up to 0.2.2, Python and command-line flags from 0.3.0 on.

Keys are those of torchtitan 0.2.2, torchtitan/config/job_config.py, and 0.3.0, torchtitan/config/configs.py.
Stages are always listed module by module (``module_fqns_per_model_part``), so that torchtitan cuts where the plan
does. With a pipeline the local batch holds all micro-batches of a step; without, gradients are accumulated.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from planner.errors import Unsupported
from planner.exporters.header import comments, describe
from planner.exporters.limits import Limits, check_limits
from planner.exporters.script import (
    TORCH_PRECISIONS,
    policy_of,
    refuse_context_without_shards,
    refuse_replicas_beside_splits,
    shard_and_replicate,
)
from planner.exporters.stages import cuts_of
from planner.pipeline.generators import SCHEDULES, splits_backward
from planner.plans import Plan

OLD_TARGET, TARGET = "torchtitan-0.2", "torchtitan"

TOML_FILE, PYTHON_FILE, FLAGS_FILE = "torchtitan.toml", "config_registry.py", "torchtitan_flags.txt"

RECOMPUTE = {"none": "none", "alternate": "selective", "full": "full"}
"""Policy -> ``activation_checkpoint.mode``; its selective mode by operators recomputes every second product."""

LOSS_ALONE = ("torch-loss-alone", "torch-loss-alone-batched")
"""Stacks whose loss is compiled, and nothing else."""

REDUCES = "float32"
"""All that ``mixed_precision_reduce`` may be."""

CLASSES = {"none": "None", "alternate": "SelectiveAC.Config()", "full": "FullAC.Config()"}
"""Policy -> ``activation_checkpoint`` from 0.3.0 on."""

LIMITS = Limits(
    zero_stages=(0, 2, 3),
    hybrid=(2, 3),
    recompute=RECOMPUTE,
    precision=TORCH_PRECISIONS,
    optimizers={"adamw": "AdamW"},
    axes=("tensor", "pipeline", "context", "expert"),
    experts_over_context=True,
    schedules={name: entry.torch_name for name, entry in SCHEDULES.items() if entry.torch_name},
    uneven_stages=True,
    half_weights=True,
    experts_over_tensor=None,
)

OLD_LIMITS = LIMITS._replace(sequence_parallel=True, every=True)
"""0.2.2 has no switch for sequence parallelism, and checkpoints layers by number."""


class Base(NamedTuple):
    """A configuration that torchtitan ships for one of our models."""

    module: str
    flavor: str
    config: str
    """Function of 0.3.0."""


MODELS: Mapping[str, Base] = {
    "llama-3-8b": Base("llama3", "8B", "llama3_8b"),
    "llama-3.1-8b": Base("llama3", "8B", "llama3_8b"),
    "llama-3-70b": Base("llama3", "70B", "llama3_70b"),
    "llama-3.1-70b": Base("llama3", "70B", "llama3_70b"),
    "llama-3.1-405b": Base("llama3", "405B", "llama3_405b"),
    "qwen3-0.6b": Base("qwen3", "0.6B", "qwen3_0_6b"),
    "qwen3-32b": Base("qwen3", "32B", "qwen3_32b"),
    "deepseek-v3-671b": Base("deepseek_v3", "671B", "deepseek_v3_671b"),
}
"""Our name -> torchtitan's; any other model gets the settings alone."""

NO_MODEL = "torchtitan ships no configuration of this model: name your own"


def to_torchtitan_toml(plan: Plan) -> dict[str, str]:
    """``torchtitan.toml`` for torchtitan 0.2.2 and before; raises ``Unsupported`` beyond `OLD_LIMITS`."""
    check_limits(plan, OLD_TARGET, OLD_LIMITS)
    _check(plan, OLD_TARGET)
    p = plan.plan
    split = p.expert > 1 and not p.experts_over_tensor
    parallelism = _parallelism(plan, "output") | {"expert_tensor_parallel_degree": p.tensor if split else 1}
    base = MODELS.get(plan.model.name)
    sections: dict[str, Mapping[str, Any]] = {
        "training": _training(plan),
        "parallelism": parallelism,
        "activation_checkpoint": _checkpointing(policy_of(p), p.recompute_every),
        "compile": {"enable": bool(compiled(plan)), "components": compiled(plan) or ["model", "loss"]},
    }
    if plan.job.step_in_backward:
        sections["optimizer"] = {"early_step_in_backward": True}
    if base is not None:
        sections = {"model": {"name": base.module, "flavor": base.flavor}, **sections}
    notes = "".join(f"# {note}\n" for note in _notes(plan, base))
    return {TOML_FILE: f"{comments(plan)}\n{notes}" + "".join(_table(*item) for item in sections.items())}


def to_torchtitan(plan: Plan) -> dict[str, str]:
    """``config_registry.py`` and the same as flags, for torchtitan 0.3.0.

    Raises ``Unsupported`` beyond `LIMITS`, and for tensor with expert parallelism: experts take whole tensor groups.
    """
    check_limits(plan, TARGET, LIMITS)
    _check(plan, TARGET)
    if plan.plan.tensor > 1 and plan.plan.expert > 1 and not plan.plan.experts_over_tensor:
        raise Unsupported(
            f"target {TARGET} spreads experts over tensor-parallel ranks, the plan splits each over them; "
            f"plan with --tensor 1, or export to {OLD_TARGET}"
        )
    parallelism = _parallelism(plan, "lm_head") | {"enable_sequence_parallel": plan.plan.sequence_parallel}
    return {PYTHON_FILE: _python(plan, parallelism), FLAGS_FILE: _flags(plan, parallelism)}


def compiled(plan: Plan) -> list[str]:
    """What is compiled: blocks not where the plan is for eager ones, nor where their backward is split.

    PyTorch refuses the latter: pytorch/pytorch issue 161904 and pull request 162511.
    """
    if plan.job.stack in LOSS_ALONE:
        return ["loss"]
    split = plan.plan.pipeline > 1 and splits_backward(plan.plan.schedule)
    return [] if plan.job.stack == "torch-eager" or split else ["model", "loss"]


def _check(plan: Plan, target: str) -> None:
    p = plan.plan
    refuse_replicas_beside_splits(p, target)
    refuse_context_without_shards(p, target)
    if p.context > 1 and plan.job.seq_len % (2 * p.context):
        raise Unsupported(
            f"target {target} deals sequences out in {2 * p.context} pieces, which do not divide {plan.job.seq_len}"
        )
    if p.expert > 1 and (shard_and_replicate(p)[0] * p.context) % p.expert:
        raise Unsupported(
            f"target {target} takes expert-parallel ranks from the {p.shard_degree} that share states"
        )


def _notes(plan: Plan, base: Base | None) -> list[str]:
    return [] if base is not None else [NO_MODEL + "."]


def _training(plan: Plan) -> dict[str, Any]:
    p, job = plan.plan, plan.job
    compute = TORCH_PRECISIONS[job.precision]
    return {
        "local_batch_size": p.micro_batch * (p.num_microbatches if p.pipeline > 1 else 1),
        "global_batch_size": job.global_batch,
        "seq_len": job.seq_len,
        "dtype": "float32" if job.master_weights else compute,
        "mixed_precision_param": compute,
        "mixed_precision_reduce": REDUCES,
    }


def _parallelism(plan: Plan, head: str) -> dict[str, Any]:
    p = plan.plan
    shard, replicate = shard_and_replicate(p)
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": replicate,
        "data_parallel_shard_degree": shard,
        "fsdp_reshard_after_forward": "always" if p.zero_stage == 3 else "never",
        "tensor_parallel_degree": p.tensor,
        "context_parallel_degree": p.context,
        "expert_parallel_degree": p.expert * (p.tensor if p.experts_over_tensor else 1),
        "pipeline_parallel_degree": p.pipeline,
    }
    if p.pipeline > 1:
        settings |= {
            "pipeline_parallel_schedule": LIMITS.schedules[p.schedule],
            "pipeline_parallel_microbatch_size": p.micro_batch,
            "module_fqns_per_model_part": modules_by_stage(cuts_of(plan), head),
        }
    return settings


def modules_by_stage(cuts: tuple[int, ...], head: str) -> list[list[str]]:
    """Names of the modules of each stage; the last one ends with the norm and the ``head``."""
    stages = [[f"layers.{i}" for i in range(*ends)] for ends in zip(cuts, cuts[1:], strict=False)]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", head]
    return stages


def _checkpointing(policy: str, every: int) -> dict[str, str]:
    if every > 1:
        return {"mode": "selective", "selective_ac_option": str(every)}
    mode = {"mode": RECOMPUTE[policy]}
    return mode | {"selective_ac_option": "op"} if policy == "alternate" else mode


def _compilation(plan: Plan) -> str:
    """Arguments, where blocks and loss are what is compiled unless others are named."""
    parts = compiled(plan)
    return f"enable={bool(parts)}" + (f", components={parts}" if parts == ["loss"] else "")


def _literal(value: object) -> str:
    """A value of TOML; of Python too, but for booleans."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _table(name: str, values: Mapping[str, Any]) -> str:
    return f"\n[{name}]\n" + "".join(f"{key} = {_literal(value)}\n" for key, value in values.items())


def _python(plan: Plan, parallelism: Mapping[str, Any]) -> str:
    base = MODELS.get(plan.model.name)
    usage = (
        "Put this file into a package on PYTHONPATH and run torchtitan with --module PACKAGE --config planned."
        if base
        else f"{NO_MODEL} in a function `planned` that returns apply(its configuration)."
    )
    lines = [
        '"""' + "\n".join((*describe(plan), *_notes(plan, base), usage)) + '\n"""',
        "",
        "from torchtitan.config import CompileConfig, ParallelismConfig",
        "from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC",
        "",
        "",
        "def apply(config):",
        '    """The plan, set in a configuration."""',
        *(f"    config.training.{key} = {value!r}" for key, value in _training(plan).items()),
        "    config.parallelism = ParallelismConfig(",
        *(f"        {key}={value!r}," for key, value in parallelism.items()),
        "    )",
        f"    config.activation_checkpoint = {CLASSES[policy_of(plan.plan)]}",
        f"    config.compile = CompileConfig({_compilation(plan)})",
        "    return config",
    ]
    if base is not None:
        lines += [
            "",
            "",
            "def planned():",
            '    """The configuration to run."""',
            f"    from torchtitan.models.{base.module}.config_registry import {base.config}",
            "",
            f"    return apply({base.config}())",
        ]
    return "\n".join(lines) + "\n"


def _flags(plan: Plan, parallelism: Mapping[str, Any]) -> str:
    """Scalars as flags; lists of modules and classes have none."""
    base = MODELS.get(plan.model.name)
    flags = [f"--module {base.module}", f"--config {base.config}"] if base else []
    flags += [f"--training.{key} {value}" for key, value in _training(plan).items()]
    for key, value in parallelism.items():
        if isinstance(value, bool):
            flags.append(f"--parallelism.{'' if value else 'no-'}{key}")
        elif not isinstance(value, list):
            flags.append(f"--parallelism.{key} {value}")
    rest = [f"activation_checkpoint = {CLASSES[policy_of(plan.plan)]} is set in {PYTHON_FILE} only."]
    if plan.plan.pipeline > 1:
        rest.append(f"So are the layers of each stage, module_fqns_per_model_part in {PYTHON_FILE}.")
    notes = "".join(f"# {note}\n" for note in (*_notes(plan, base), *rest))
    return f"{comments(plan)}\n{notes}" + " \\\n".join(flags) + "\n"
