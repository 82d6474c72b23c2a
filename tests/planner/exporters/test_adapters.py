"""Exported adapters are trained by peft as the plan says, and refused by targets that train whole models only."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_llama import CONFIG, installed, run_check, tiny_plan

from planner.errors import Unsupported
from planner.evaluation.setting import graph_of
from planner.exporters.adapters import ADAPTING
from planner.exporters.registry import EXPORTERS, export
from planner.graph import count_parameters
from planner.models.adapters import Adapter
from planner.plans import Plan

PEFT = ("peft", "transformers.models.llama.modeling_llama")

SHARDED: dict[str, Any] = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}


def planned(**fields: Any) -> Plan:
    adapter = Adapter(**{"r": 4, "target_modules": ("q_proj", "down_proj"), **fields})
    return tiny_plan(job={"precision": "bf16", "adapter": adapter}, **SHARDED)


@pytest.mark.torch
@pytest.mark.skipif(not installed("peft"), reason="peft is not installed")
@pytest.mark.parametrize(
    "fields", [{}, {"target_modules": ("all-linear",), "base": "nf4"}], ids=["named", "all"]
)
def test_peft_trains_what_is_planned(fields: dict[str, Any], tmp_path: Path) -> None:
    plan = planned(**fields)
    for name, text in export(plan, "hf-trainer").items():
        (tmp_path / name).write_text(text)
    model = tmp_path / "model.json"
    model.write_text(json.dumps(CONFIG))
    found = json.loads(run_check("check_peft.py", tmp_path, model, modules=PEFT).splitlines()[-1])
    assert found["trainable"] == count_parameters(graph_of(plan.model, plan.job))
    every = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert found["moved"] == (every if fields else ["down_proj", "q_proj"])
    assert found["losses"][1] < found["losses"][0]
    assert found["four_bit"] == bool(fields)


def test_axolotl_has_keys_of_its_own() -> None:
    (text,) = export(planned(base="nf4", lora_dropout=0.05), "axolotl").values()
    keys = yaml.safe_load(text)
    named = {name: value for name, value in keys.items() if name.startswith(("lora", "load", "adapter"))}
    assert named == {
        "adapter": "qlora",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "lora_r": 4,
        "lora_dropout": 0.05,
        "lora_target_modules": ["q_proj", "down_proj"],
    }


@pytest.mark.parametrize("target", sorted(EXPORTERS.keys() - set(ADAPTING)))
def test_other_targets_refuse(target: str) -> None:
    with pytest.raises(Unsupported, match=f"target {target} cannot express adapters; export to hf-trainer"):
        export(planned(), target)


def test_adapters_of_products_are_no_adapters_of_modules() -> None:
    adapter = Adapter(r=4, target_modules=("linear_qkv",))
    plan = tiny_plan(job={"precision": "fp8", "stack": "megatron", "adapter": adapter}, data=4)
    with pytest.raises(Unsupported, match="hf-trainer adapts modules one by one, stack megatron products"):
        export(plan, "hf-trainer")


@pytest.mark.parametrize("target", sorted(ADAPTING))
def test_dropout_of_what_adapters_add_is_no_word_of_peft(target: str) -> None:
    behind = planned(lora_dropout=0.1, dropout_position="post")
    with pytest.raises(Unsupported, match=f"target {target} drops what adapters read, not what they add"):
        export(behind, target)
    assert export(planned(lora_dropout=0.0, dropout_position="post"), target)
