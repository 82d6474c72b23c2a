"""What families are known to have where a run gives their sizes alone."""

from typing import Any

import pytest

from planner.graph import Op
from planner.models.catalog import build_graph
from planner.models.measured import read_run_model
from planner.models.reading import ConfigReader
from planner.runs.mapping import plan_from_run

SIZES = {"layers": 4, "hidden": 64, "heads": 8, "ffn_hidden": 128, "vocab": 128, "seq": 32}

ROW: dict[str, Any] = {
    "hardware": {"gpu": "H100-SXM-80GB", "n_gpus": 8},
    "parallel": {"dp": 8, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 8},
}


def layer(**model: Any) -> tuple[dict[str, Op], list[str]]:
    """Operators of a layer by name, and what was assumed."""
    plan, assumed = plan_from_run({**ROW, "model": SIZES | model})
    return {op.name: op for op in build_graph(plan.model, 32).block["layer"].ops}, list(assumed)


@pytest.mark.parametrize(
    ("name", "given", "norms"),
    [("Qwen3-4B", {}, True), ("Qwen2.5-7B", {}, False), ("Qwen3-4B", {"qk_norm": "none"}, False)],
)
def test_families_normalise_queries_and_keys(name: str, given: dict[str, Any], norms: bool) -> None:
    ops, assumed = layer(name=name, **given)
    assert any("qk_norm=head" in made for made in assumed) == norms
    assert ("q_norm" in ops) == norms


def test_nemotron_rotates_and_has_no_biases() -> None:
    """arXiv:2402.16819, section 2.1: rotary embeddings, squared ReLU, no bias terms."""
    nemotron, assumed = layer(name="Nemotron-4-340B", gated_mlp=False)
    gpt, _ = layer(name="GPT-340B", gated_mlp=False)
    assert ("rotary" in nemotron, "rotary" in gpt) == (True, False)
    assert (len(nemotron["down"].weights), len(gpt["down"].weights)) == (1, 2)
    assert (nemotron["activation"].attributes["function"], gpt["activation"].attributes["function"]) == (
        "relu2",
        "gelu",
    )
    assert "bias=False (as Nemotron-4-340B has it)" in assumed


@pytest.mark.parametrize(
    ("name", "layers", "given", "expected"),
    [
        ("gemma3-12b", 48, {}, (1024, 40)),
        ("gemma-3-27b", 62, {}, (1024, 52)),
        ("gemma-3-1b-pt", 26, {}, (512, 22)),
        ("gemma4-31b", 60, {}, (1024, 50)),
        ("gemma4-2b", 35, {}, (512, 28)),
        ("Gemma-2-9B", 42, {}, (4096, 21)),
        ("GPT-OSS-20B", 24, {}, (128, 12)),
        ("gemma3-12b", 48, {"sliding_window": 256, "sliding_window_layers": 4}, (256, 4)),
        ("gemma3-12b", 48, {"sliding_window": 0}, (0, 0)),
        ("gemma-7b", 28, {}, (0, 0)),
    ],
)
def test_families_see_windows_in_most_layers(
    name: str, layers: int, given: dict[str, Any], expected: tuple[int, int]
) -> None:
    """The layers of each published configuration: five of six in Gemma 3, every other in Gemma 2 and gpt-oss."""
    plan, _ = plan_from_run({**ROW, "model": SIZES | {"name": name, "layers": layers} | given})
    kinds = read_run_model(ConfigReader(plan.model.config, name), name)
    windowed = sum(layer.attention == "window" for layer in kinds.layers)
    assert (kinds.window, windowed) == expected
