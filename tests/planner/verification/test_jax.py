"""`verify --with jax`: what it accepts, and that a wrong export is caught."""

from typing import Any

import pytest
from tiny_llama import installed, tiny_model, tiny_plan

from planner import plan as search
from planner.errors import InputError, Unsupported
from planner.models.catalog import build_graph, load_model
from planner.plans import Plan
from planner.verification import with_jax
from planner.verification.miniature import scaled_down, scaled_graph
from planner.verification.tools import verify

needs_jax = [pytest.mark.jax, pytest.mark.skipif(not installed("jax"), reason="jax is not installed")]

FULL: dict[str, Any] = {"data": 8, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 8}


def of_configured(family: str, degrees: dict[str, Any], **config: Any) -> Plan:
    plan = tiny_plan(tiny_model(model_type=family, **config), **degrees)
    return plan.model_copy(update={"job": plan.job.model_copy(update={"seq_len": 32})})


def of_shipped(name: str, **degrees: Any) -> Plan:
    plan = tiny_plan(load_model(name), **degrees)
    return plan.model_copy(update={"job": plan.job.model_copy(update={"seq_len": 512})})


PLANS = {
    "tensor and context, ZeRO 3, accumulation": lambda: of_shipped(
        "llama-3.1-8b", **FULL | {"data": 4, "tensor": 4, "context": 2}, recompute="selective"
    ),
    "experts over tensor": lambda: of_shipped("mixtral-8x7b", **FULL, expert=4, tensor=2),
    "tied table, biases, ZeRO 2, full recompute": lambda: of_shipped(
        "gpt2", data=8, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=8, recompute="full"
    ),
    "latent attention, shared experts": lambda: of_shipped("deepseek-v2-lite", **FULL),
    "arrays of several weights over tensor": lambda: of_shipped(
        "gpt-neox-20b", **FULL | {"data": 2, "shard_degree": 2, "tensor": 4}
    ),
    "squared ReLU over tensor": lambda: of_configured(
        "nanochat", FULL | {"data": 2, "shard_degree": 2, "tensor": 4}, hidden_act="relu2"
    ),
    "layers of two kinds, hybrid": lambda: of_shipped(
        "gpt-oss-120b",
        data=8, zero_stage=3, sharding="HYBRID_SHARD", shard_degree=4, replicate_degree=2, expert=2, tensor=2,
    ),
    "states over a part of the experts' ranks": lambda: of_shipped(
        "gpt-oss-120b",
        data=16, zero_stage=3, sharding="HYBRID_SHARD", shard_degree=4, replicate_degree=4, expert=8,
    ),
    "states over a part of the context ranks": lambda: of_shipped(
        "mixtral-8x7b",
        data=2, context=4, zero_stage=2, sharding="HYBRID_SHARD", shard_degree=2, replicate_degree=4, expert=2,
    ),
}  # fmt: skip


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("case", [pytest.param(case, marks=needs_jax) for case in PLANS])
def test_exported_plans_train_as_one_device_does(case: str) -> None:
    answer = verify(PLANS[case](), "jax")
    assert answer.passed, answer.failures()
    assert len(answer.checks) == 3
    assert answer.checks[0].expected > 3  # the logarithm of the vocabulary is 4.9
    assert answer.checks[1].expected < answer.checks[0].expected


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=needs_jax) for ranks in (1, 2, 4)])
def test_columns_that_are_dealt_lie_on_the_rank_that_has_their_head(ranks: int) -> None:
    """Queries of eight heads, keys of four: each rank's columns are its heads' of both, one after the other."""
    import numpy as np

    from planner.verification.programs.jax_graph import Columns, cut

    queries, keys = np.arange(8), 100 + np.arange(4)
    by_rank = zip(np.split(queries, ranks), np.split(keys, ranks), strict=True)
    array = np.concatenate([np.concatenate(parts) for parts in by_rank])[None]
    assert cut(array, Columns(0, 8, ranks)).tolist() == [queries.tolist()]
    assert cut(array, Columns(8, 4, ranks)).tolist() == [keys.tolist()]


@pytest.mark.parametrize("_", [pytest.param(None, marks=needs_jax)])
def test_a_wrong_export_fails_the_check(_: None, monkeypatch: pytest.MonkeyPatch) -> None:
    right = with_jax.to_jax

    def wrong(plan: Plan) -> dict[str, str]:
        text = right(plan)["jax_shardings.py"]
        spoiled = text.replace("x = checkpoint_name(", "x = checkpoint_name(1.01 * ")
        assert spoiled != text
        return {"jax_shardings.py": spoiled}

    monkeypatch.setattr(with_jax, "to_jax", wrong)
    answer = verify(of_shipped("llama-3.1-8b", **FULL), "jax")
    assert not answer.passed
    assert "loss: expected" in answer.failures()


def test_what_the_exporter_refuses_is_not_verified() -> None:
    with pytest.raises(Unsupported, match="no pipeline"):
        verify(tiny_plan(pipeline=2), "jax")


def test_a_missing_framework_is_said_with_its_remedy(tmp_path: Any) -> None:
    with pytest.raises(InputError, match=r"no-such-python: no such file"):
        verify(of_shipped("gpt2"), "jax", str(tmp_path / "no-such-python"))
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho jax\n")
    bare.chmod(0o755)
    with pytest.raises(InputError, match=r"jax is not installed in .*: pip install jax, or name .* --python"):
        verify(of_shipped("gpt2"), "jax", str(bare))


SCALED = {
    "all axes": {"data": 16, "tensor": 8, "context": 2, "expert": 4, "zero_stage": 3, "shard_degree": 32},
    "plain": {"data": 16},
    "tensor": {"data": 2, "tensor": 8},
}


@pytest.mark.parametrize("case", SCALED)
def test_small_plans_keep_every_axis_that_fits(case: str) -> None:
    plan = tiny_plan(load_model("mixtral-8x7b"), micro_batch=1, **SCALED[case])
    small, left_out = scaled_down(plan, 16)
    assert small.plan.num_devices <= 16
    for axis in ("data", "tensor", "context", "expert"):
        before, after = getattr(plan.plan, axis), getattr(small.plan, axis)
        assert (after > 1) == (before > 1), axis
    assert not left_out
    assert (small.plan.zero_stage, small.plan.recompute) == (plan.plan.zero_stage, plan.plan.recompute)
    assert small.job.global_batch == small.plan.data * small.plan.micro_batch * small.plan.num_microbatches


def test_small_plans_say_nothing_of_dropout_that_they_leave_out() -> None:
    """GPT-2 drops, and its stages say how what drops is split; the small graph has the same operators but these."""
    answer = search("gpt2", "dgx-h100:1x4", global_batch=16, seq_len=256)
    (large,) = answer.plan.stages
    (small,) = scaled_down(answer, 4)[0].plan.stages
    left_out = {
        op for block, split in large.sharding.items() for op in split.keys() - small.sharding[block].keys()
    }
    assert left_out
    assert all(op.endswith("dropout") for op in left_out)


def test_axes_that_do_not_fit_are_named() -> None:
    degrees = {"data": 16, "tensor": 8, "context": 2, "expert": 4, "zero_stage": 3, "shard_degree": 32}
    small, left_out = scaled_down(tiny_plan(load_model("mixtral-8x7b"), **degrees), 4)
    assert small.plan.num_devices <= 4
    assert any("expert is left out" in note for note in left_out)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "gemma-2-9b", "t5-small", "gpt2"])
def test_small_graphs_have_the_same_parameters(name: str) -> None:
    graph = build_graph(load_model(name), 512)
    small = scaled_graph(graph, tiny_plan(tiny_model()).plan)
    paths = {t.path for b, _ in graph.instances() for t in b.tensors if t.role == "weight"}
    assert {t.path for b, _ in small.instances() for t in b.tensors if t.role == "weight"} == paths
    assert max(small.dims.values()) <= 128
    assert small.tied == graph.tied
