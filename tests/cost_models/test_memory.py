"""Bytes of states against ZeRO's table, Megatron's counts and PyTorch's memory tracker."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_specs.errors import InputError, UnknownName
from cost_models.memory import (
    gathered_bytes,
    gradient_bytes,
    loss_bytes,
    loss_chunks,
    state_bytes,
    transformer_layer_activation_bytes,
    weight_bytes,
)

ZERO_STAGES = {"Pos": 1, "Pos+g": 2, "Pos+g+p": 3}


def test_table_1_of_zero(rows: Any) -> None:
    """fp16 weights and gradients, fp32 masters, momentum and variance: 2 + 2 + 12 bytes per parameter."""
    checked = 0
    for row in rows("state_tables"):
        if "stage" not in row:
            continue
        for entry in row["value"]:
            states = state_bytes(
                row["params"],
                "fp16",
                grad_dtype="fp16",
                zero_stage=ZERO_STAGES[row["stage"]],
                shard_degree=entry["dp"],
            )
            assert states.total / 1e9 == pytest.approx(entry["gb"], rel=5e-3), (row["id"], entry)
            checked += 1
    assert checked >= 18


def test_figure_1_of_zero() -> None:
    totals = [
        state_bytes(7.5e9, "fp16", grad_dtype="fp16", zero_stage=stage, shard_degree=64).total / 1e9
        for stage in range(4)
    ]
    assert totals == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.05)


def test_megatrons_bytes_per_parameter() -> None:
    assert state_bytes(1.0).total == 18
    assert state_bytes(1.0, zero_stage=1, shard_degree=8).total == 6 + 12 / 8


def test_states_of_fsdp2_by_the_tracker(rows: Any) -> None:
    for row in rows("torch_states"):
        states = state_bytes(row["parameters"], zero_stage=3, shard_degree=row["shards"], keeps_copy=False)
        measured = row["peak_by_category_bytes"]
        assert states.weights == 0
        assert states.master == pytest.approx(measured["Sharded Param"], rel=1e-3), row["id"]
        assert states.optimizer == pytest.approx(measured["OptState"], rel=1e-3), row["id"]


def test_peak_of_the_optimizer_step_by_the_tracker(rows: Any) -> None:
    """All states and gradients, and one more fp32 copy where the step runs kernel by kernel."""
    for row in rows("torch_states"):
        states = state_bytes(row["parameters"], zero_stage=3, shard_degree=row["shards"], keeps_copy=False)
        extra = states.master if row["optimizer"] == "adamw_foreach" else 0.0
        constant = sum(row["peak_by_category_bytes"][kind] for kind in ("Buffer", "Inputs"))
        assert states.total + extra + constant == pytest.approx(row["peak_optimizer_bytes"], rel=1e-3)


def test_loss_by_the_tracker(rows: Any) -> None:
    """At the loss two fp32 copies of the logits are temporary, a third is kept for the backward."""
    checked = 0
    for row in rows("torch_states"):
        temporary = row["peak_by_category_bytes"]["Temp"]
        loss = loss_bytes(row["tokens"], row["vocab"])
        if row["grad_accum"] == 1 and row["peak_by_category_bytes"]["Reduce Scatter"] == 0:
            assert temporary == pytest.approx(2 / 3 * loss, rel=1e-3), row["id"]
            assert row["peak_by_category_bytes"]["Activation"] > loss / 3
            checked += 1
    assert checked >= 8


def test_fused_loss_works_in_chunks() -> None:
    assert loss_chunks(128256, 4096) == 32
    assert loss_chunks(1000, 4096) == 1
    assert loss_bytes(8192, 128256, chunks=32) == loss_bytes(8192, 128256) / 32 == 12 * 8192 * 128256 / 32


@given(
    parameters=st.floats(1, 1e12),
    stage=st.integers(0, 3),
    shards=st.integers(1, 4096),
    precision=st.sampled_from(["bf16", "fp16", "fp8", "fp4", "fp32"]),
    optimizer=st.sampled_from(["adamw", "adamw8bit", "sgd", "adafactor", "muon"]),
    masters=st.booleans(),
)
def test_sharding_never_adds(
    parameters: float, stage: int, shards: int, precision: str, optimizer: str, masters: bool
) -> None:
    def states(stage: int, shards: int) -> float:
        return state_bytes(parameters, precision, optimizer, masters, "fp32", stage, shards).total

    assert states(stage, shards) <= states(0, 1) * (1 + 1e-12)
    assert states(stage, 2 * shards) <= states(stage, shards)
    assert states(3, shards) == pytest.approx(states(0, 1) / shards)
    assert states(0, shards) == states(0, 1)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        ({}, (2, 4, 4, 8)),
        ({"precision": "fp32"}, (4, 0, 4, 8)),
        ({"precision": "fp8"}, (2, 4, 4, 8)),
        ({"master_weights": False, "grad_dtype": "bf16"}, (2, 0, 2, 4)),
        ({"optimizer": "sgd"}, (2, 4, 4, 4)),
        ({"optimizer": "adafactor"}, (2, 4, 4, 0)),
        ({"optimizer": "adamw8bit"}, (2, 4, 4, 2 + 8 / 256)),
        ({"keeps_copy": False}, (0, 4, 4, 8)),
        ({"keeps_copy": False, "precision": "fp32"}, (4, 0, 4, 8)),
    ],
)
def test_bytes_per_parameter(options: dict[str, Any], parts: tuple[float, ...]) -> None:
    assert tuple(state_bytes(1.0, **options)) == parts


def test_gathered_copies_of_the_tracker() -> None:
    """A tiny model of two layers: root 524,544 and layer 692,736 parameters, bf16, one layer prefetched."""
    layer, root = 692_736, 524_544
    unsharded, all_gather = 2_434_560, 1_385_472
    assert gathered_bytes(layer, root, 2) == unsharded + all_gather
    assert gathered_bytes(layer, root, 2, prefetched=0) == unsharded


def test_published_activation_shares(rows: Any) -> None:
    """Figure 7 of Korthikanti et al., in percent of tensor parallelism alone."""
    variants = {
        "seq": {"sequence_parallel": True},
        "sel": {"recompute": "selective"},
        "seq_sel": {"sequence_parallel": True, "recompute": "selective"},
        "full": {"recompute": "full"},
    }
    checked = 0
    for row in rows("state_tables"):
        if "config" not in row:
            continue
        sizes = [row["config"][key] for key in ("seq", "microbatch", "hidden", "heads", "tp")]
        base = transformer_layer_activation_bytes(*sizes)
        for name, options in variants.items():
            share = 100 * transformer_layer_activation_bytes(*sizes, **options) / base
            assert share == pytest.approx(row["value"][name], abs=0.15), (row["id"], name)
            checked += 1
    assert checked >= 8


def test_activation_formulas_of_korthikanti() -> None:
    s, b, h, a, t = 2048, 4, 6144, 64, 8
    sbh = s * b * h
    formula = transformer_layer_activation_bytes
    assert formula(s, b, h, a) == pytest.approx(sbh * (34 + 5 * a * s / h))
    assert formula(s, b, h, a, t) == pytest.approx(sbh * (10 + 24 / t + 5 * a * s / (h * t)))
    assert formula(s, b, h, a, t, True) == pytest.approx(sbh / t * (34 + 5 * a * s / h))
    assert formula(s, b, h, a, t, True, "selective") == pytest.approx(34 * sbh / t)
    assert formula(s, b, h, a, t, True, "full") == 2 * sbh


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="zero_stage is 0, 1, 2 or 3, found 4"):
        state_bytes(1.0, zero_stage=4)
    with pytest.raises(InputError, match="shard_degree is at least 1, found 0"):
        state_bytes(1.0, shard_degree=0)
    with pytest.raises(UnknownName, match="unknown precision 'bf61'; did you mean bf16"):
        weight_bytes("bf61")
    with pytest.raises(UnknownName, match="unknown gradient type 'fp4'"):
        gradient_bytes("fp4")
    with pytest.raises(UnknownName, match="unknown recomputation 'some'"):
        transformer_layer_activation_bytes(1, 1, 1, 1, recompute="some")  # type: ignore[arg-type]


def test_fsdp_shards_its_only_copy_of_the_weights_from_stage_2_on() -> None:
    """PyTorch's tracker: qwen3-8b in 16 bits over 8 ranks without resharding has 29.2 GiB, not 42.5."""
    kept, only = (
        state_bytes(
            1, master_weights=False, zero_stage=2, shard_degree=8, keeps_copy=False, shards_weights_from=stage
        ).weights
        for stage in (3, 2)
    )
    assert (kept, only) == (2, 2 / 8)


def test_stage_1_leaves_whole_what_products_read() -> None:
    """XLA's arguments of dp16-full-zero1: 0.7687e9 parameters whole in fp32, a sixteenth of two moments: 3.2213 GiB."""
    parameters = 768_624_640
    only = state_bytes(parameters, zero_stage=1, shard_degree=16, keeps_copy=False)
    assert (only.weights + only.master + only.optimizer) / 2**30 == pytest.approx(3.2213, abs=1e-4)
    kept = state_bytes(parameters, zero_stage=1, shard_degree=16)
    assert (kept.weights, kept.master) == (2 * parameters, 4 * parameters / 16)
