"""Dropout: shares by the configuration or its class, masks that layers keep, stacks that drop nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.errors import InputError
from planner.evaluation.setting import graph_of
from planner.graph import Block
from planner.models.catalog import build_graph, load_model
from planner.models.dropout import HALVES, SCORES, SITES, dropped, dropped_tensors, with_dropout
from planner.models.families import ARCHITECTURES, FIXED_LENGTHS
from planner.models.measured import FAMILY
from planner.models.model import Model
from planner.models.reading import ConfigReader
from planner.operators import recomputed_ops, saved_tensors
from planner.plans import Job
from planner.runs import plan_from_run
from planner.runs.record import parse_run

CONFIGS = {
    row["config"]["model_type"]: row["config"]
    for row in map(
        json.loads,
        (Path(__file__).parents[2] / "data" / "hf_parameters.jsonl").read_text().splitlines(),
    )
}
WITH_CLASS = sorted(SITES.keys() - {FAMILY})


@pytest.mark.parametrize("family", WITH_CLASS)
def test_an_absent_share_is_that_of_the_class(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[family]()
    assert {site.key: getattr(config, site.key) for site in SITES[family]} == {
        site.key: site.usual for site in SITES[family]
    }


@pytest.mark.parametrize("family", WITH_CLASS)
def test_what_is_dropped_is_what_the_blocks_make(family: str) -> None:
    """Attention to an encoder is only where there is one."""
    read = ConfigReader(CONFIGS[family], family)
    length = FIXED_LENGTHS[family](read) if family in FIXED_LENGTHS else 8
    model = with_dropout(Model(name=family, family=family, config=CONFIGS[family]), 0.5)
    graph = build_graph(model, length)
    made = {tensor.name for block in graph.blocks for tensor in block.tensors}
    crossing = {name for name in (*HALVES, *SCORES) if name.startswith("cross_")}
    alone = set() if ARCHITECTURES[family] == "encoder-decoder" else crossing
    assert dropped_tensors(model) - alone <= made


def kept(block: Block, kernel: str = "flash", policy: str = "none") -> set[str]:
    return set(saved_tensors(block, policy, kernel))  # type: ignore[arg-type]


def gpt_layer() -> tuple[Any, Block]:
    """Of h = 1024, a = 16, s = 512, with GPT-2's dropout."""
    fields = {"n_layer": 1, "n_embd": 1024, "n_head": 16, "n_positions": 512, "vocab_size": 1000}
    model = Model(name="gpt", family="gpt2", config=fields)
    graph = dropped(build_graph(model, 512), dropped_tensors(model))
    return graph, graph.block["layer"]


def test_a_gpt_layer_keeps_the_published_masks() -> None:
    """Korthikanti et al., arXiv:2205.05198, section 4.1: 34 sbh, and of scores 2 bytes, a mask of 1, and 2 once more.

    The softmax's own result is beside the graph (`test_plain_attention_keeps_its_probabilities_once_more`).
    """
    graph, layer = gpt_layer()
    s, h, a = 512, 1024, 16
    size = {"compute": 2, "bool": 1, "fp32": 0, "int32": 0}

    def total(kernel: str, policy: str = "none") -> float:
        tensors = [layer.tensor[name] for name in kept(layer, kernel, policy)]
        return sum(graph.elements(t) * size[t.dtype] for t in tensors)

    assert total("plain") == 34 * s * h + 3 * a * s * s
    assert total("flash") == 34 * s * h
    assert total("plain", "full") == 2 * s * h
    assert total("plain", "attention") == 34 * s * h


def test_masks_are_drawn_again_where_a_layer_is_computed_again() -> None:
    _, layer = gpt_layer()
    assert {"mlp_out_dropout", "attn_projected_dropout", "down"} <= set(recomputed_ops(layer, "full"))
    assert not any(name.endswith("_mask") for name in kept(layer, "plain", "selective"))


def row_of(name: str, stack: str, **more: Any) -> dict[str, Any]:
    sizes = {
        "dp": 8,
        "dp_shard": 8,
        "sharding": "FULL_SHARD",
        "micro_batch": 8,
        "global_batch": 64,
        "recompute": "none",
    }
    return {
        "model": {"name": name, "seq": 512, **more},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": 8},
        "parallel": {**sizes, "tp": 1, "pp": 1, "precision": "bf16", "stack": stack, "attention": "plain"},
    }  # fmt: skip


def activations(row: dict[str, Any]) -> float:
    from planner.evaluation import evaluate

    plan, _ = plan_from_run(parse_run(row))
    return evaluate(plan).memory["activations"]


def test_plain_attention_keeps_its_probabilities_once_more() -> None:
    """BERT-large: 24 layers, 16 heads, 8 sequences of 512; two bytes of what is left, and a mask of one."""
    with_it, without = (activations(row_of("bert-large", "hf-fsdp", **d)) for d in ({}, {"dropout": 0}))
    scores, hidden = 16 * 512 * 512, 512 * 1024
    assert with_it - without == pytest.approx(8 * (24 * (3 * scores + 2 * hidden) + hidden), rel=1e-6)


def test_stacks_drop_by_modules_by_sums_or_not_at_all() -> None:
    bert = load_model("bert-large")
    layers = {
        stack: graph_of(bert, Job(global_batch=8, seq_len=512, stack=stack)).block["layer"]
        for stack in ("hf-fsdp", "torch-eager", "torch-whole", "megatron", "deepspeed", "jax-xla", "litgpt")
    }
    alone = {stack for stack, layer in layers.items() if "mlp_out_dropout" in {op.name for op in layer.ops}}
    summed = {
        stack
        for stack, layer in layers.items()
        if "attn_residual" in {op.name for op in layer.ops if "mask" in op.attributes}
    }
    assert alone == {"hf-fsdp", "torch-eager", "torch-whole"}
    assert summed == {"megatron", "deepspeed"}


def test_relu_keeps_its_result_beside_what_is_left_of_it() -> None:
    """T5-small: 12 layers of 2048, of which the tracker has 8 sequences of 512 more (test_live_tensors)."""
    with_it, without = (activations(row_of("t5-small", "hf-fsdp", **d)) for d in ({}, {"dropout": 0}))
    tokens, layers, probabilities = 8 * 512, 12, 8 * 8 * 512 * 512
    hidden = 512 * (2 * 6 + 3 * 6 + 4)  # of both halves, of three, both embeddings and both ends
    of_relu = layers * (1 + 2) * 2048
    assert with_it - without == pytest.approx(tokens * (hidden + of_relu) + 18 * 3 * probabilities, rel=0.02)


def test_a_share_that_a_file_has_is_read_and_kept(tmp_path: Path) -> None:
    config = {**CONFIGS["gpt2"], "resid_pdrop": 0, "attn_pdrop": 0.3}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    model = load_model(path)
    assert model.config["attn_pdrop"] == 0.3
    assert dropped_tensors(model) == {"positioned", *SCORES}


@pytest.mark.parametrize("share", [1, -0.1, "much", True])
def test_a_share_is_less_than_one(tmp_path: Path, share: object) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIGS["gpt2"], "resid_pdrop": share}))
    with pytest.raises(InputError, match="resid_pdrop must be from 0 to below 1"):
        load_model(path)


def test_sizes_drop_what_a_run_says() -> None:
    sizes = {"layers": 2, "hidden": 1024, "heads": 16, "vocab": 1000, "gated_mlp": False}
    with_it, without = (
        activations(row_of("some", "hf-fsdp", **sizes, **dropout)) for dropout in ({"dropout": 0.1}, {})
    )
    assert with_it > without
