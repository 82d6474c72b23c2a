"""Gradients are reduced by the exported file in the type that the plan is priced with, for every target."""

import ast
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml
from tiny_llama import ACCELERATE, installed, run_check, tiny_plan

from cluster_specs.catalog import load_cluster
from planner.errors import Unsupported
from planner.evaluation import evaluate
from planner.exporters.reductions import ALWAYS, other_type, priced_type
from planner.exporters.registry import export, nearest
from planner.exporters.unsaid import unsaid
from planner.plans import Plan

WIDTHS = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}

ZERO1: dict[str, Any] = {"data": 4, "zero_stage": 1, "sharding": "NO_SHARD", "shard_degree": 4}

REPLICAS: dict[str, Any] = {"data": 4, "replicate_degree": 4}

DEGREES = (SHARDED, ZERO1, REPLICAS)

JOBS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "bf16": {"precision": "bf16"},
        "bf16, reduced in fp32": {"precision": "bf16", "reduce_dtype": "fp32"},
        "bf16, summed in bf16": {"precision": "bf16", "grad_dtype": "bf16", "reduce_dtype": "bf16"},
        "bf16 of Megatron": {"precision": "bf16", "stack": "megatron"},
        "fp16": {"precision": "fp16"},
        "fp16, reduced in fp32": {"precision": "fp16", "reduce_dtype": "fp32"},
    }
)


def _constant(text: str) -> str:
    (value,) = (
        ast.unparse(node.value)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "REDUCE_DTYPE"
    )
    return WIDTHS[value.removeprefix("torch.")]


def _mixed(text: str) -> str:
    """accelerate's ``mixed_precision``, which FSDP reduces in."""
    return str(yaml.safe_load(text)["mixed_precision"])


def _trainer(text: str) -> str:
    """FSDP reduces in the type of mixed precision, replicas in that of the weights."""
    found = json.loads(text)
    return next(name for name in ("bf16", "fp16") if found[name]) if found.get("fsdp") else "fp32"


def _axolotl(text: str) -> str:
    found = yaml.safe_load(text)
    return next(name for name in ("bf16", "fp16") if found[name]) if "fsdp_config" in found else "fp32"


def _titan(text: str) -> str:
    (found,) = re.findall(r"mixed_precision_reduce = ['\"](\w+)['\"]", text)
    return WIDTHS[found]


def _megatron(text: str) -> str:
    return "fp16" if "--fp16" in text else "bf16" if "--grad-reduce-in-bf16" in text else "fp32"


READERS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "fsdp2": _constant,
        "fsdp1": _constant,
        "accelerate": _mixed,
        "accelerate-fsdp1": _mixed,
        "hf-trainer": _trainer,
        "axolotl": _axolotl,
        "torchtitan": _titan,
        "torchtitan-0.2": _titan,
        "deepspeed": lambda text: str(json.loads(text)["communication_data_type"]),
        "megatron-lm": _megatron,
        "megatron-bridge": lambda text: "fp32" if json.loads(text)["ddp"]["grad_reduce_in_fp32"] else "bf16",
        "nanotron": lambda text: (
            "fp32" if yaml.safe_load(text)["optimizer"]["accumulate_grad_in_fp32"] else "bf16"
        ),
    }
)
"""Target -> the type that its first file has gradients reduced in, as its trainer reads it."""


def on_h100(job: dict[str, Any], degrees: dict[str, Any]) -> Plan:
    """The tiny plan where all types have a rate."""
    return tiny_plan(job=job, **degrees).model_copy(update={"cluster": load_cluster("dgx-h100:1")})


def near(target: str) -> Iterator[Plan]:
    """The plans that the command line exports."""
    for job, degrees in itertools.product(JOBS.values(), DEGREES):
        try:
            plan = nearest(on_h100(job, degrees), target)
            export(plan, target)
        except Unsupported:
            continue  # fp16, or ZeRO 1 where there is nothing near it
        yield plan


@pytest.mark.parametrize("target", READERS)
def test_files_reduce_as_their_plans_are_priced(target: str) -> None:
    found = list(near(target))
    read = [READERS[target](next(iter(export(plan, target).values()))) for plan in found]
    assert read == [priced_type(plan) for plan in found]
    assert not [said for plan in found for said in unsaid(plan, target) if "gradients reduced in" in said]
    assert len(found) >= 8


@pytest.mark.parametrize("target", ["torchtitan", "torchtitan-0.2", "megatron-lm", "nanotron"])
def test_another_type_is_priced_again_or_said(target: str) -> None:
    degrees = SHARDED if "torchtitan" in target else ZERO1
    plan = on_h100(JOBS["bf16"], degrees)
    (note,) = (said for said in unsaid(plan, target) if "reduced" in said)
    assert note.endswith(f"gradients reduced in bf16; {target} reduces them in fp32")
    assert any(note in text for text in export(plan, target).values())
    found = nearest(plan, target)
    assert found.job.reduce_dtype == "fp32"
    assert found.estimate == evaluate(found)
    assert re.search("gradients reduced in fp32.*; predicted", found.warnings[-1])


def test_ranks_alone_reduce_nothing() -> None:
    assert all(other_type(tiny_plan(job=JOBS["bf16"]), target) is None for target in ALWAYS)


@pytest.mark.torch
@pytest.mark.skipif(not installed("accelerate"), reason="accelerate is not installed")
@pytest.mark.parametrize("target", ["accelerate", "accelerate-fsdp1"])
@pytest.mark.parametrize("job", ["bf16", "bf16, reduced in fp32", "fp16"])
def test_accelerate_reduces_in_what_is_priced(job: str, target: str, tmp_path: Path) -> None:
    plan = nearest(on_h100(JOBS[job], SHARDED), target)
    ((name, text),) = export(plan, target).items()
    (tmp_path / name).write_text(text)
    check = (
        ("check_accelerate.py",) if target == "accelerate" else ("check_frameworks.py", "accelerate_fsdp1")
    )
    found = json.loads(run_check(*check, tmp_path / name, modules=ACCELERATE).splitlines()[-1])
    assert WIDTHS[found["reduces"].removeprefix("torch.")] == priced_type(plan)


@pytest.mark.skipif(
    "TORCHTITAN_0_3" not in os.environ, reason="torchtitan 0.3.0 is in no folder named by TORCHTITAN_0_3"
)
def test_torchtitan_knows_one_type() -> None:
    source = Path(os.environ["TORCHTITAN_0_3"]) / "torchtitan" / "config" / "configs.py"
    (annotation,) = (
        ast.unparse(node.annotation)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "mixed_precision_reduce"
    )
    assert annotation == "Literal['float32']"
