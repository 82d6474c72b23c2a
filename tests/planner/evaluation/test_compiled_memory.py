"""Live tensors of steps that XLA compiled for TPU slices."""

import math
from typing import Any

import pytest
from memory_rows import predicted, rows_of

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism

COMPILED = rows_of("xla_memory.jsonl")
OWN_COMPILED = {run: row for run, row in rows_of("xla_compiled.jsonl").items() if row["measured"]["ok"]}
"""Cases of benchmarks/compiling.py that the compiler took: degrees, exchanges, accumulation that others lack."""

WHOLE_MODELS = rows_of("xla_models.jsonl")
"""Shipped models compiled by benchmarks/compiling.py."""


def share(run: str, rows: dict[str, Any]) -> float:
    """What is predicted over what the compiler has."""
    return predicted(run, rows).tensor_bytes / 2**30 / rows[run]["measured"]["tensor_gib_per_gpu"]


@pytest.mark.parametrize(
    ("run", "tolerance"),
    [
        ("xla/8B/v5p:2x2x4/d1f16t1/b4/none/splash", 0.03),
        ("xla/0.37B/v5e:4x4/d16f1t1/b4/none/splash", 0.03),
        ("xla/1.2B/v5e:4x4/d1f16t1/b2/none/splash", 0.04),
        ("xla/1.2B/v5e:4x4/d1f16t1/b2/dots_nobatch/splash", 0.01),
        ("xla/0.37B/v5e:4x4/d16f1t1/b4/dots_nobatch/splash", 0.02),
        ("xla/8B/v5e:8x8/d1f64t1/b1/full/splash", 0.03),
        ("xla/70B/v4:4x4x8/d1f32t4/b1/full/splash", 0.03),
    ],
)
def test_buffers_that_the_compiler_assigned(run: str, tolerance: float) -> None:
    """Residuals by primitive where nothing is recomputed, padded heads of 64, casts ahead, the head's gradient."""
    assert share(run, COMPILED) == pytest.approx(1, rel=tolerance)


TOO_MUCH = {"xla-compiled/7b-8/v5e:4x4/fsdp16-full-plain": 1.26}
"""Steps that hold less than is predicted since their tables lie in columns: by how much, at most.

Gathered heads and layers are counted whole at a peak where they may be gone, or there in parts.
"""


@pytest.mark.parametrize(("run", "most"), TOO_MUCH.items())
def test_steps_that_hold_less_than_is_predicted(run: str, most: float) -> None:
    assert 1 < share(run, OWN_COMPILED) < most


@pytest.mark.parametrize("run", [run for run in OWN_COMPILED if run not in TOO_MUCH])
def test_cases_of_our_own_by_the_compiler(run: str) -> None:
    """Within 11 %; over 64 ranks, where XLA sums whole gradients, some now and some after the layers, 18 %."""
    row = OWN_COMPILED[run]
    limit = 0.11 if row["parallel"]["dp_shard"] * row["parallel"]["cp"] < 64 else 0.18
    assert predicted(run, OWN_COMPILED).tensor_bytes / 2**30 == pytest.approx(
        row["measured"]["tensor_gib_per_gpu"], rel=limit
    )


HELD_OUT = rows_of("xla_held_out.jsonl")
LAID_OUT_AGAIN = {
    "xla-compiled/llama-3.2-1b/v5e:4x4/dp16-full-zero2",
    "xla-compiled/1b-16/v5e:4x4/dp16-full-zero2",
}
"""Nearly as much as a v5e has: XLA copies late and holds a fifth less; for v5p, with more, as much as is predicted."""


@pytest.mark.parametrize(
    "run",
    [
        run
        for run, row in HELD_OUT.items()
        if row["parallel"].get("zero_stage") in (1, 2) and run not in LAID_OUT_AGAIN
    ],
)
def test_zero_1_and_2_by_the_compiler(run: str) -> None:
    """Weights whole, and copied before updated ones come into their place unless a sum gathers them; shards of sums."""
    assert share(run, HELD_OUT) == pytest.approx(1, rel=0.08)


HEAD = {"data": 16, "zero_stage": 3, "recompute": "full"}


@pytest.mark.parametrize(
    ("cluster", "plan", "seq", "share"),
    [
        ("tpu-v5e:4x4", HEAD | {"shard_degree": 16}, 4096, 4 / 16),
        (
            "tpu-v5e:4x4",
            HEAD | {"shard_degree": 4, "replicate_degree": 4, "sharding": "HYBRID_SHARD"},
            4096,
            1.25,
        ),
        ("tpu-v5e:8x8", HEAD | {"data": 64, "shard_degree": 64}, 4096, 65 / 64),
        ("tpu-v5e:4x4", HEAD | {"shard_degree": 16}, 128, 17 / 16),
    ],
    ids=["ring", "copies", "many", "short products"],
)
def test_xla_has_four_parts_of_the_heads_gradient_where_it_is_summed_in_a_ring(
    cluster: str, plan: dict[str, Any], seq: int, share: float
) -> None:
    """Two sums on their way and two products, in fp32; else the whole and a rank's part of the sum."""
    degrees = Parallelism.model_validate(plan)
    job = Job(global_batch=degrees.data, seq_len=seq, stack="libtpu-0.0.51")
    found = Evaluator(load_model("llama-3.1-8b"), load_cluster(cluster), job).estimate(degrees)
    at_head = next(m for m in found.memory_over_step if m.phase == "head")
    assert at_head.tensors["gradient_buffers"] == pytest.approx(share * 4 * 128256 * 4096, rel=1e-3)


@pytest.mark.parametrize(("stack", "gib"), [("jax-xla", 6.6468), ("libtpu-0.0.51", 7.5706)])
def test_a_later_compiler_sums_the_heads_whole_gradient_after_the_layers(stack: str, gib: float) -> None:
    """The exported step of 8B over 64 ranks of v5e, compiled by libtpu 0.0.52 and 0.0.51."""
    job = Job(global_batch=64, seq_len=4096, stack=stack)
    plan = Parallelism.model_validate(HEAD | {"data": 64, "shard_degree": 64})
    found = Evaluator(load_model("llama-3.1-8b"), load_cluster("tpu-v5e:8x8"), job).estimate(plan)
    assert found.tensor_bytes / 2**30 == pytest.approx(gib, rel=0.015)


@pytest.mark.parametrize("run", [run for run, row in WHOLE_MODELS.items() if row["measured"]["ok"]])
def test_other_models_by_the_compiler(run: str) -> None:
    measured = WHOLE_MODELS[run]["measured"]["tensor_gib_per_gpu"]
    error = predicted(run, WHOLE_MODELS).tensor_bytes / 2**30 / measured - 1
    assert abs(error) < 0.075


@pytest.mark.parametrize("run", ["t5-11b/v5p:2x2x4/fsdp16-full-mb4", "t5-11b/v5p:2x2x4/tp4-fsdp4-full-mb2"])
def test_casts_of_a_decoder_are_gone_once_its_backward_is_done(run: str) -> None:
    """Those of the encoder are left, 552 MiB by XLA: 23 layers of 4 and 2 matrices, of 1024 x 65536 and 16384 wide."""
    rows = WHOLE_MODELS | HELD_OUT
    found = predicted(f"xla-compiled/{run}", rows)
    cast = {moment.phase: moment.tensors.get("cast_weights", 0) / 2**20 for moment in found.memory_over_step}
    assert cast["backward"] == pytest.approx(552, rel=0.05)
    assert cast["loss"] > 2 * cast["backward"]
    measured = rows[f"xla-compiled/{run}"]["measured"]["tensor_gib_per_gpu"]
    assert found.tensor_bytes / 2**30 == pytest.approx(measured, rel=0.025)


BESIDE_TWO_RINGS = [
    "8b-8/v5e:4x4/tp4-fsdp4-none",
    "8b-8/v5e:4x4/tp4-fsdp4-selective",
    "70b-2/v5e:4x4/tp4-fsdp4-none",
    "llama-3.2-1b/v5e:4x4/tp4-fsdp4-full-fp32",
]


@pytest.mark.parametrize("run", BESIDE_TWO_RINGS)
def test_two_short_rings_of_a_head_read_all_of_the_logits_gradient(run: str) -> None:
    """And one begins with zeros: 2 to 6 % less was predicted; buffers of the second and third were looked at."""
    rows = OWN_COMPILED | HELD_OUT | WHOLE_MODELS
    assert share(f"xla-compiled/{run}", rows) == pytest.approx(1, rel=0.015)


HEADS_GRADIENTS = {
    "1b-4/v6e:2x4/cp4-fsdp2-none": 0.01,
    "8b-4/v5p:2x4x4/cp2-fsdp8x2-full": 0.01,
    "8b-4/v5p:4x4x4/cp4-fsdp16-full": 0.02,
    "2b-4/v6e:4x4/tp4-fsdp4-full": 0.01,
    "8b-2/v5p:4x4x4/fsdp64-none": 0.025,
    "8b-2/v6e:4x8/tp16-fsdp2-full": 0.03,
    "8b-4/v5e:8x8/tp4-fsdp8x2-selective": 0.01,
    "8b-4/v5p:4x4x4/tp4-fsdp4x4-none": 0.015,
    "8b-2/v5e:8x8/tp16-fsdp4-none": 0.035,
}
"""+26, +25, +22, +17, +16, +14, +11, +6 and +17 % when all without a ring were early, or late beside logits in 16 bits,
and a postponed ring beside both."""


@pytest.mark.parametrize(("run", "tolerance"), HEADS_GRADIENTS.items())
def test_the_heads_gradient_comes_when_least_is_alive(run: str, tolerance: float) -> None:
    """By XLA, whose order of a program is the best of several."""
    assert share(f"xla-compiled/{run}", HELD_OUT) == pytest.approx(1, rel=tolerance)


@pytest.mark.parametrize(
    ("run", "phase", "logits", "gradient"),
    [
        ("8b-4/v5p:2x4x4/cp2-fsdp8x2-full", "backward", 2004, 2004),
        ("3b-4/v5e:4x8/tp8-fsdp4-none", "backward", 148.4 / 2, 148.4),
        ("7b-2/v5e:4x4/fsdp4x4-full", "head", 500, 500 * 5 / 4),
        ("8b-8/v5e:8x8/fsdp64-full", "head", 2004, 2004),
    ],
    ids=["late", "late beside an array", "early", "waiting"],
)
def test_logits_wait_for_a_late_gradient_of_the_head(
    run: str, phase: str, logits: float, gradient: float
) -> None:
    """What XLA has of both at once, in MiB: those of 4096 tokens of 128256 words, or a tensor rank's in 16 bits."""
    moments = predicted(f"xla-compiled/{run}", OWN_COMPILED | HELD_OUT).memory_over_step
    there = [m.tensors for m in moments if m.phase == phase][-1]
    assert there["logits_and_loss"] / 2**20 == pytest.approx(logits, rel=0.005)
    assert there["gradient_buffers"] / 2**20 == pytest.approx(gradient, rel=0.005)


LATER = {
    "3b-2/v5e:4x8/tp16-fsdp2-selective": ({"layers": 16}, "4x8", {}, 1320.0, 0.045),
    "8b-2/v6e:4x8/tp16-fsdp2-full": (
        {"layers": 8, "seq": 4096},
        "4x8",
        {
            "tp": 1,
            "dp": 32,
            "dp_shard": 16,
            "dp_replicate": 2,
            "sharding": "HYBRID_SHARD",
            "global_batch": 32,
        },
        6215.6,
        0.025,
    ),
    "8b-4/v5p:2x4x4/cp2-fsdp8x2-full": (
        {"layers": 16},
        "2x2x4",
        {"dp": 8, "dp_shard": 4, "global_batch": 8},
        13164.3,
        0.025,
    ),
}
"""Like these cases, compiled after gradients of heads were priced: what differs, and MiB."""


@pytest.mark.parametrize("run", LATER)
def test_more_layers(run: str) -> None:
    """Of 3B's two layers 22 % too much is told, as XLA keeps up to 100 MiB on the chip; of sixteen 4 %.

    8B with sixteen makes the head's gradient early on v5p, though it would hold less late.
    """
    model, topology, parallel, mib, tolerance = LATER[run]
    row = HELD_OUT[f"xla-compiled/{run}"]
    devices = math.prod(map(int, topology.split("x")))
    changed = {
        "model": row["model"] | model,
        "hardware": row["hardware"] | {"topology": topology, "n_gpus": devices},
        "parallel": row["parallel"] | parallel,
    }
    found = predicted("own", {"own": row | changed})
    assert found.tensor_bytes / 2**20 == pytest.approx(mib, rel=tolerance)


RINGS_OVER_FOUR = {
    "llama-3.2-1b/v6e:2x2/fsdp4-full": 0.015,
    "2b-8/v5p:2x2x4/tp4-fsdp4-none": 0.035,
    "7b-8/v5p:2x2x4/tp4-fsdp4-none": 0.01,
    "qwen2.5-14b/v5p:2x2x4/tp4-fsdp4-none-momentum": 0.01,
    "opt-6.7b/v5p:2x2x4/tp4-fsdp4-none-mb2": 0.01,
    "llama-2-13b/v5e:4x8/tp8-fsdp4-full": 0.025,
}
"""+10.8, +7.5, +1.0, +1.4, +1.0 and -1.4 % when all had the logits' gradient as an array, parts before layers."""


@pytest.mark.parametrize(("run", "tolerance"), RINGS_OVER_FOUR.items())
def test_unrolled_rings_read_logits_and_begin_early_where_memory_is_set_aside(
    run: str, tolerance: float
) -> None:
    """On v5e; on others nothing of the head's sum is there before the layers' backward is done, beside tensor ranks."""
    rows = OWN_COMPILED | HELD_OUT | WHOLE_MODELS
    assert share(f"xla-compiled/{run}", rows) == pytest.approx(1, rel=tolerance)


LARGE_LAYERS = {
    "70b-2/v5p:2x2x4/fsdp16-full": 0.07,
    "8b-4/v5e:4x4/fsdp16-full-fp32": 0.015,
    "gpt-neox-20b/v5p:2x2x4/fsdp16-full": 0.02,
    "llama-3.2-3b/v5e:4x4/fsdp16-full": 0.015,
    "7b-8/v5e:4x8/fsdp32-none": 0.015,
    "7b-4/v6e:4x4/fsdp16-selective-mb2": 0.025,
    "7b-2/v5e:4x4/fsdp4x4-full": 0.02,
}
"""Few tokens beside the weights of a layer: +16, -1, +5, -9, +8, +18 and +10 % when whole gradients lay beside them."""


@pytest.mark.parametrize(("run", "tolerance"), LARGE_LAYERS.items())
def test_layers_whose_weights_are_larger_than_their_activations(run: str, tolerance: float) -> None:
    assert share(f"xla-compiled/{run}", HELD_OUT) == pytest.approx(1, rel=tolerance)


@pytest.mark.parametrize(
    ("run", "gathered", "summed"),
    [
        ("xla-compiled/7b-8/v5e:4x4/fsdp16-full", 2 * 86 + 4 * 32, 0),
        ("xla-compiled/7b-2/v5e:4x4/fsdp4x4-full", 2 * 86 + 4 * 32, 86),
    ],
)
def test_the_last_weight_is_gone_and_only_one_gradient_is_whole(
    run: str, gathered: float, summed: float
) -> None:
    """By XLA, in MiB: gate and up, and what attention reads; the gradient of the last product unless a ring sums it."""
    moments = predicted(run, OWN_COMPILED | HELD_OUT).memory_over_step
    later = [moment.tensors for moment in moments if moment.phase == "backward"][1]
    parts = (OWN_COMPILED | HELD_OUT)[run]["parallel"]["dp_shard"] > 4
    ring = 4096 * 32000 / 16 * 4 / 2**20 if parts else 0
    assert later["gathered_weights"] / 2**20 == pytest.approx(gathered, rel=0.001)
    assert later.get("gradient_buffers", 0) / 2**20 == pytest.approx(summed + ring, rel=0.001)


@pytest.mark.parametrize(
    ("run", "mib"),
    [
        ("xla/3.2B/v5e:4x4/d1f16t1/b1/full/splash", 3 * 125.25),
        ("xla-compiled/qwen2.5-0.5b/v5e:4x4/tp2-fsdp8-none", 3 * 37.1),
        ("xla-compiled/pythia-12b/v5e:4x4/fsdp16-full-sgd", 2 * 74.25),
        ("xla-compiled/falcon-7b/v5e:4x4/fsdp16-full", 3 * 95.25),
        ("xla-compiled/qwen3-0.6b/v5e:4x4/fsdp16-none", 0),
        ("xla-compiled/llama-3.2-1b/v5e:4x4/fsdp16-full", 0),
        ("xla-compiled/qwen2.5-0.5b/v6e:2x4/cp2-fsdp4-full", 0),
    ],
)
def test_tables_whose_columns_fill_no_lanes_are_laid_out_by_rows(run: str, mib: float) -> None:
    """192, 112, 320 and 284 columns, by XLA; 64 and 128 stay as they are, and on v6e all until the update."""
    loss = next(
        m for m in predicted(run, COMPILED | WHOLE_MODELS | HELD_OUT).memory_over_step if m.phase == "loss"
    )
    assert loss.tensors.get("tables_in_rows", 0) / 2**20 == pytest.approx(mib, rel=0.002)


def test_weights_of_16_bits_are_kept_once_more_by_a_loop_that_recomputes_nothing() -> None:
    """Phi-2, by XLA: 32 layers of 2 x 100 and 4 x 40 MiB on each of 16 ranks."""
    moments = predicted("xla-compiled/phi-2/v6e:4x4/fsdp16-none-bf16", WHOLE_MODELS).memory_over_step
    loss = next(m for m in moments if m.phase == "loss")
    assert loss.tensors["cast_weights"] / 2**20 == pytest.approx((2 * 100 + 4 * 40) * 32 / 32, rel=0.2)


def test_products_of_fp32_jobs_read_weights_in_16_bits() -> None:
    """XLA gathers a head of 125 MiB there, and has casts of 3 x 21.5 MiB and 4 x 8 MiB of layers ahead."""
    found = predicted("xla-compiled/7b-4/v6e:4x4/tp2-fsdp8-full-fp32", HELD_OUT)
    at_head = next(m.tensors for m in found.memory_over_step if m.phase == "head")
    assert at_head["gathered_weights"] / 2**20 == pytest.approx(125, rel=0.01)
    assert at_head["cast_weights"] / 2**20 == pytest.approx(3 * 21.5 + 4 * 8, rel=0.01)


def test_what_the_compiler_refused_does_not_fit() -> None:
    refused = [run for run, row in WHOLE_MODELS.items() if not row["measured"]["ok"]]
    assert refused
    assert not any(predicted(run, WHOLE_MODELS).fits for run in refused)


def accumulating(microbatches: int, recompute: str) -> Estimate:
    job = Job(global_batch=microbatches, seq_len=8192, stack="jax-xla")
    plan = Parallelism(tensor=16, num_microbatches=microbatches, recompute=recompute)
    return Evaluator(load_model("llama-3.1-8b"), load_cluster("tpu-v5p:2x2x4"), job).estimate(plan)


@pytest.mark.parametrize(
    ("recompute", "one", "two"),
    [("none", 13.060, 15.983), ("full", 8.852, 10.905), ("selective", 10.283, 12.326)],
)
def test_a_compiled_loop_over_microbatches(recompute: str, one: float, two: float) -> None:
    """Sums beside gradients, and casts of weights: 8B on v5p:2x2x4, one and two micro-batches (libtpu 0.0.52) [GiB]."""
    few, more = (accumulating(count, recompute).tensor_bytes / 2**30 for count in (1, 2))
    assert few == pytest.approx(one, rel=0.025)
    assert more == pytest.approx(two, rel=0.025)
    assert more - few == pytest.approx(two - one, abs=0.03)


def test_logits_stay_until_a_short_ring_has_summed_the_heads_gradient() -> None:
    """Beside tensor ranks a ring of four is no loop, and XLA runs its steps after the layers' backward."""
    degrees = {"tensor": 4, "zero_stage": 3, "recompute": "full"}
    found = {}
    for shards in (4, 8):
        job = Job(global_batch=shards, seq_len=4096, stack="jax-xla")
        plan = Parallelism(data=shards, shard_degree=shards, **degrees)
        cluster = load_cluster("tpu-v5e:4x4" if shards == 4 else "tpu-v5e:4x8")
        moments = Evaluator(load_model("llama-3.1-8b"), cluster, job).estimate(plan).memory_over_step
        found[shards] = {m.phase: m.tensors.get("logits_and_loss", 0.0) for m in moments}
    logits = 4 * 4096 * 128256 / 4
    assert found[4]["backward"] == pytest.approx(logits)
    assert found[8]["backward"] == 0
    assert found[8]["loss"] - found[4]["loss"] == pytest.approx(logits / 2)


def test_unfused_attention_keeps_probabilities_twice() -> None:
    """XLA, 8 layers of 16 heads, one sequence of 2048 on v5e:2x2: 4.97 GiB where 3.15 had been predicted."""
    name = "xla/0.37B/v5e:4x4/d1f16t1/b4/full/dot"
    row = {
        **COMPILED[name],
        "model": COMPILED[name]["model"] | {"layers": 8},
        "hardware": COMPILED[name]["hardware"] | {"n_gpus": 4, "topology": "2x2"},
        "parallel": COMPILED[name]["parallel"]
        | {"dp": 4, "dp_shard": 4, "micro_batch": 1, "global_batch": 4, "recompute": "none"},
    }
    assert predicted("own", {"own": row}).tensor_bytes / 2**30 == pytest.approx(4.97, rel=0.05)
