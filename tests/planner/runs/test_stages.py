"""How published runs cut layers into stages: as their sources print it, fill them, or weigh layers."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.runs import plan_from_run
from planner.runs.stages import filled_layers, layers_of_stages, printed_layers

PUBLISHED = Path(__file__).parents[2] / "published"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("Et*4|(t*4|)*14tmL", (4, *(4,) * 14, 1)),
        ("Et|(tt|)*30mL", (1, *(2,) * 30, 0)),
        ("Et*5|t*6|t*6|t*5,L", (5, 6, 6, 5)),
        ("Ett|tt|m|L", (2, 2, 0, 0)),
        ("61 layers", ()),
        ("", ()),
    ],
)
def test_a_printed_layout_says_the_layers_of_each_stage(text: str, layers: tuple[int, ...]) -> None:
    assert printed_layers(text) == layers


@pytest.mark.parametrize(
    ("stages", "layers"),
    [
        (4, (16, 16, 16, 13)),
        (8, (*(8,) * 7, 5)),
        (16, (*(4,) * 15, 1)),
        (32, (1, *(2,) * 30, 0)),
        (9, ()),  # 63 with both ends
        (61, ()),
    ],
)
def test_layouts_of_megatron_bridge_for_the_61_layers_of_deepseek(
    stages: int, layers: tuple[int, ...]
) -> None:
    assert filled_layers(61, stages) == layers


@given(st.integers(2, 200), st.integers(2, 64))
def test_filled_stages_hold_every_layer(layers: int, stages: int) -> None:
    found = filled_layers(layers, stages)
    assert not found or (len(found), sum(found)) == (stages, layers)
    assert all(0 <= count <= -(-layers // stages) for count in found)
    assert len(set(found[1:-1])) <= 1


def deepseek(series: str, **parallel: Any) -> dict[str, Any]:
    rows = map(json.loads, (PUBLISHED / "runs_gpu.jsonl").read_text().splitlines())
    row = next(row for row in rows if "26.06.01/deepseekv3/DGX-GB300" in row["id"])
    return {**row, "series": series, "parallel": {**row["parallel"], **parallel}}


def test_a_run_has_the_stages_that_its_source_prints() -> None:
    plan, assumed = plan_from_run(deepseek("Megatron-Bridge perf summary"))
    assert [b - a for a, b in (stage.blocks for stage in plan.plan.stages)] == [4] * 15 + [1]
    assert [stage.devices[0] for stage in plan.plan.stages] == [0, 128] * 8
    assert not any("pp_layout" in text for text in assumed)


def test_a_layout_that_does_not_add_up_is_named_as_ignored() -> None:
    plan, assumed = plan_from_run(deepseek("some recipe", pp_layout="Et*4|tmL"))
    assert plan.plan.stages == ()
    assert "ignored parallel.pp_layout" in assumed


def test_stages_are_filled_by_megatron_bridge_alone() -> None:
    plan, assumed = plan_from_run(deepseek("Megatron-Bridge perf summary", pp_layout=None))
    assert [b - a for a, b in (stage.blocks for stage in plan.plan.stages)] == [4] * 15 + [1]
    assert "pp_layout=4 layers a stage, 1 in the last" in assumed
    other, _ = plan_from_run({**deepseek("NeMo AutoModel", pp_layout=None), "id": "automodel/x"})
    assert other.plan.stages == ()


@pytest.mark.parametrize(
    ("layers", "head", "stages", "counts"),
    [
        (4, 0, 2, (2, 2)),  # a stage ends with the layer that reaches its share
        (16, 4, 4, (5, 5, 5, 1)),
        (16, 4.1, 4, (6, 5, 5, 0)),
        (3, 0, 3, (1, 1, 1)),
        (5, 0.5, 2, (3, 2)),
    ],
)
def test_cuts_of_equal_layers(layers: int, head: float, stages: int, counts: tuple[int, ...]) -> None:
    assert layers_of_stages([1.0] * layers, head, stages) == counts


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=40), st.floats(0, 20), st.integers(1, 8))
def test_every_layer_is_somewhere_and_no_stage_goes_on_beyond_its_share(
    layers: list[float], head: float, stages: int
) -> None:
    counts = layers_of_stages(layers, head, stages)
    assert sum(counts) == len(layers)
    reached, share = 0, (sum(layers) + head) / stages
    for stage, count in enumerate(counts):
        reached += count
        if count > 1:
            assert sum(layers[: reached - 1]) <= share * (stage + 1) * (1 + 1e-9)
