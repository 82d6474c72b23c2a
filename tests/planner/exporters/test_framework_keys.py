"""Frameworks that need accelerators to be imported: every exported key is one of theirs (lists of names as facts)."""

import ast
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_llama import tiny_model, tiny_plan

from planner.evaluation.cuts import with_cuts
from planner.exporters.registry import export
from planner.plans import Plan

FACTS = Path(__file__).parents[2] / "data" / "framework_keys.jsonl"

KEYS: dict[str, Any] = {row["target"]: row["keys"] for row in map(json.loads, FACTS.read_text().splitlines())}

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}

LAYERS = 8


def plan_of(**degrees: Any) -> Plan:
    """Of eight layers, in uneven stages where there is a pipeline."""
    plan = tiny_plan(tiny_model(num_hidden_layers=LAYERS), job={"precision": "bf16"}, **degrees)
    if degrees.get("pipeline", 1) == 1 or degrees.pop("even", False):
        return plan
    return plan.model_copy(update={"plan": with_cuts(plan.plan, LAYERS, (0, 3, LAYERS))})


MEGATRON: dict[str, dict[str, Any]] = {
    "replicas": {"data": 4, "replicate_degree": 4},
    "uneven stages, tensor, context": {
        "data": 4, "tensor": 2, "context": 2, "pipeline": 2, "zero_stage": 1, "shard_degree": 8,
    },
    "two instances, offload": {
        "data": 4, "zero_stage": 1, "shard_degree": 2, "replicate_degree": 2, "offload": ("optimizer",),
    },
    "Megatron-FSDP": SHARDED | {"recompute": "full"},
    "selective": SHARDED | {"recompute": "attention"},
}  # fmt: skip


def megatron_flags(text: str) -> dict[str, list[str]]:
    words = shlex.split(text.partition("MEGATRON_ARGS=(")[2].rpartition(")")[0])
    flags: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            flags[word[2:]] = []
        else:
            flags[list(flags)[-1]].append(word)
    return flags


@pytest.mark.parametrize("case", MEGATRON)
def test_megatron_has_every_argument(case: str) -> None:
    (text,) = export(plan_of(**MEGATRON[case]), "megatron-lm").values()
    flags = megatron_flags(text)
    assert set(flags) <= set(KEYS["megatron-lm"])
    assert flags["global-batch-size"] == ["16"]


@pytest.mark.parametrize("case", MEGATRON)
def test_megatron_bridge_has_every_field(case: str) -> None:
    overrides = json.loads(export(plan_of(**MEGATRON[case]), "megatron-bridge")["megatron_bridge.json"])
    assert set(overrides) <= set(KEYS["megatron-bridge"]["container"])
    for section in ("model", "train", "ddp", "optimizer"):
        assert set(overrides[section]) <= set(KEYS["megatron-bridge"][section])


def test_torchtitan_has_every_field() -> None:
    plan = plan_of(
        data=4, pipeline=2, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=4, schedule="1f1b"
    )
    files = export(plan, "torchtitan")
    calls = [node for node in ast.walk(ast.parse(files["config_registry.py"])) if isinstance(node, ast.Call)]
    (parallelism,) = (
        node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "ParallelismConfig"
    )
    assert {k.arg for k in parallelism.keywords} <= set(KEYS["torchtitan"]["parallelism"])
    flags = re.findall(r"^--(\w+)\.(?:no-)?(\w+)", files["torchtitan_flags.txt"], re.MULTILINE)
    assert len(flags) > 10
    for section, key in flags:
        assert key in KEYS["torchtitan"][section]


@pytest.mark.parametrize("degrees", [SHARDED, SHARDED | {"pipeline": 2, "schedule": "gpipe", "even": True}])
def test_maxtext_has_every_key(degrees: dict[str, Any]) -> None:
    choice = {key: value for key, value in degrees.items() if key != "even"}
    plan = tiny_plan(
        tiny_model(num_hidden_layers=LAYERS), job={"precision": "bf16"}, recompute="full", **choice
    )
    config = yaml.safe_load(export(plan, "maxtext")["maxtext.yml"])
    assert set(config) - {"base_config"} <= set(KEYS["maxtext"])


def nested(config: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Keys of every table of ``config`` are those that are listed under its name in ``names``."""
    for table, section in names.items():
        found = config
        for part in filter(None, section.split(".")):
            found = found[part]
        assert set(found) <= set(KEYS[table.split("/")[0]][table.split("/")[1]])


def test_levanter_has_every_key() -> None:
    config = yaml.safe_load(export(plan_of(**SHARDED), "levanter")["levanter.yaml"])
    nested(
        config,
        {
            "levanter/top": "",
            "levanter/trainer": "trainer",
            "levanter/mesh": "trainer.mesh",
            "levanter/model": "model",
        },
    )


def test_nanotron_has_every_key() -> None:
    plan = tiny_plan(data=4, tensor=2, pipeline=2, zero_stage=1, shard_degree=4)
    config = yaml.safe_load(export(plan, "nanotron")["nanotron.yaml"])
    nested(config, {f"nanotron/{name}": name for name in ("parallelism", "tokens", "optimizer", "model")})


@pytest.mark.parametrize("degrees", [SHARDED, {"data": 4, "replicate_degree": 4}])
def test_axolotl_has_every_key(degrees: dict[str, Any]) -> None:
    config = yaml.safe_load(export(plan_of(**degrees), "axolotl")["axolotl.yaml"])
    nested(
        config,
        {"axolotl/top": "", **({"axolotl/fsdp_config": "fsdp_config"} if "fsdp_config" in config else {})},
    )
