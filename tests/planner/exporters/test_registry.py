"""One door to all targets."""

import ast
import re
import tomllib

import pytest
import yaml
from tiny_llama import tiny_plan

from planner.errors import UnknownName
from planner.exporters.registry import EXPORTERS, LIMITS, export, nearest, targets
from planner.plans import Estimate, Plan

ESTIMATE = Estimate(
    step_time_s=1.25,
    step_time_interval_s=(1.0, 1.5),
    tokens_per_s=204.8,
    tokens_per_s_per_device=51.2,
    model_flops_per_s_per_device=1e9,
    mfu=0.412,
    hfu=0.5,
    fits=True,
    memory_bytes=3 * 2**30,
    reserved_bytes=2 * 2**30,
    tensor_bytes=2**30,
    memory_limit_bytes=4 * 2**30,
    fullest_stage=0,
    peak_phase="backward",
    memory={},
    time={},
    communication={},
    bubble_fraction=0.0,
)


PARSERS = {"py": ast.parse, "toml": tomllib.loads, "sh": str, "txt": str}


def sharded_plan(target: str = "jax") -> Plan:
    """ZeRO 3, or ZeRO 1 for a target that has no ZeRO 3; nothing recomputed, where the target has that."""
    zero = 3 if target not in LIMITS or 3 in LIMITS[target].zero_stages else 1
    recompute = "none" if target not in LIMITS or "none" in LIMITS[target].recompute else "full"
    sharding = "FULL_SHARD" if zero == 3 else "NO_SHARD"
    plan = tiny_plan(data=4, zero_stage=zero, sharding=sharding, shard_degree=4, recompute=recompute)
    return plan.model_copy(update={"estimate": ESTIMATE})


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_target_writes_the_files_it_promises(name: str) -> None:
    files = export(sharded_plan(name), name)
    assert tuple(files) == EXPORTERS[name].files
    for file, text in files.items():
        assert PARSERS.get(file.rpartition(".")[2], yaml.safe_load)(text)


@pytest.mark.parametrize("name", EXPORTERS)
def test_every_file_says_what_was_planned_and_predicted(name: str) -> None:
    texts = [t for file, t in export(sharded_plan(name), name).items() if not file.endswith(".json")]
    assert texts
    for text in texts:
        assert re.search(r"Written by meshwright \d+\.\d+\.\d+ from a plan of schema meshwright/plan/1", text)
        assert "model tiny, 4 devices of box" in text
        assert "predicted: 1.25 s a step (1 to 1.5), 205 tokens/s, MFU 41.2%" in text
        assert "3.0 of 4.0 GiB at its peak (backward)" in text


@pytest.mark.parametrize("name", EXPORTERS)
def test_a_format_without_comments_has_a_file_of_notes(name: str) -> None:
    files = EXPORTERS[name].files
    assert not all(file.endswith(".json") for file in files)


@pytest.mark.parametrize("name", EXPORTERS)
def test_an_expressible_plan_is_its_own_nearest(name: str) -> None:
    plan = sharded_plan(name)
    assert nearest(plan, name) is plan


def test_an_unknown_target_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown export target 'acelerate'; did you mean accelerate"):
        export(sharded_plan(), "acelerate")


def test_targets_are_listed_once_each() -> None:
    assert [target.name for target in targets()] == list(EXPORTERS)
