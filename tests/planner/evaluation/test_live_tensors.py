"""Live tensors by moment: totals of PyTorch's tracker, and what each habit of a stack adds.

Those that a compiler assigned are in `test_compiled_memory`.
"""

from collections.abc import Collection
from typing import Any

import pytest
from memory_rows import predicted, rows_of

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator, evaluate
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism
from planner.runs import plan_from_run

TRACKED = rows_of("torch_memory.jsonl")
OWN = rows_of("torch_tracked.jsonl")
"""Cases of benchmarks/tracking.py: short sequences, few shards, other types, kept weights, ends as units."""
MODULES = rows_of("torch_transformers.jsonl")
"""Cases of benchmarks/tracking_transformers.py: modules of Hugging Face transformers, as hf-fsdp runs them."""
AUTOCAST = rows_of("torch_autocast.jsonl")
"""Cases of benchmarks/tracking_autocast.py: the same in fp32 under torch.autocast."""
ADAPTERS = rows_of("torch_adapters.jsonl")
"""Cases of benchmarks/tracking_adapters.py: the same with peft's adapters on frozen weights."""
REPLICAS = rows_of("torch_replicas.jsonl")
"""Cases of benchmarks/tracking_replicas.py: DistributedDataParallel."""
FLAT = rows_of("torch_flat.jsonl")
"""Cases of benchmarks/tracking_flat.py: the first FSDP."""

AT_THE_LOSS = [
    "torch/1b-accum4",
    "torch/1b-dp8-none-mb1",
    "torch/1b-dp8-none-noreshard",
    "torch/1b-dp8-selective_op_all",
    "torch/1b-hsdp4x2",
    "torch/1b-untied-block",
    "torch/7b-dp64-none",
    "torch/8b-dp8-full",
    "torch/8b-dp8-full-titan",
    "torch/8b-dp8-tp8-none",
    "torch/8b-dp64-selop",
    "torch/70b-dp64-tp8-full",
]
"""Peaks of which every part is known."""

TWO_PEAKS = {"torch/70b-dp64-tp8-full"}
"""Here two moments are equal to 0.02 per mille: the loss, and the embedding's whole gradient."""

IN_BACKWARD = ["torch/13b-dp32-noreshard-full", "torch/34b-dp64-tp2-full"]
"""Here what one operator's backward holds for a moment is approximate."""


@pytest.mark.parametrize(
    ("run", "phase", "tolerance"),
    [(run, "loss", 0.003) for run in AT_THE_LOSS] + [(run, "backward", 0.02) for run in IN_BACKWARD],
)
def test_the_tracker_saw_as_much_at_the_same_moment(run: str, phase: str, tolerance: float) -> None:
    estimate = predicted(run, TRACKED)
    measured = TRACKED[run]["measured"]["tensor_gib_per_gpu"]
    assert estimate.tensor_bytes / 2**30 == pytest.approx(measured, rel=tolerance)
    assert estimate.peak_phase == phase or run in TWO_PEAKS
    there = max(moment.tensor_bytes for moment in estimate.memory_over_step if moment.phase == phase)
    assert there == pytest.approx(estimate.tensor_bytes, rel=1e-4)


SAVED_AWAY = [run for run, row in OWN.items() if row["parallel"]["act_offload"]]
"""Here each tensor leaves as it is saved and comes when it is read (``save_on_cpu``), and no layers are under way."""


@pytest.mark.parametrize("run", SAVED_AWAY)
def test_layers_under_way_to_the_host_are_beside_what_waiting_for_each_tensor_keeps(run: str) -> None:
    measured = OWN[run]["measured"]["tensor_gib_per_gpu"]
    found = predicted(run, OWN)
    buffers = found.memory_over_step[1].tensors["offload_buffers"]
    assert found.tensor_bytes - buffers < measured * 2**30 < found.tensor_bytes


KEPT_LAST = "torch-tracked/70b-6/dp32-every_3rd_layer-4096-ends"
"""Here the last two layers keep everything, and are gone when the first that does not is computed again."""


def test_a_layer_that_is_computed_again_is_beside_all_that_others_keep() -> None:
    measured = OWN[KEPT_LAST]["measured"]["tensor_gib_per_gpu"]
    assert measured < predicted(KEPT_LAST, OWN).tensor_bytes / 2**30 < 1.05 * measured


IN_STEPS = "torch-tracked/7b-4/dp2-cp8-full-65536-ends"
"""Here the peak is inside the backward of attention in steps, of which two and a half arrays are not known."""


def test_a_step_of_attention_holds_two_arrays_more_than_is_known() -> None:
    measured, array = OWN[IN_STEPS]["measured"]["tensor_gib_per_gpu"], 8192 * 4096 * 2 / 2**30
    found = predicted(IN_STEPS, OWN)
    assert found.peak_phase == "backward"
    assert measured - 3 * array < found.tensor_bytes / 2**30 < measured


TILED = [run for run in OWN if run.endswith("-tiled")]
"""Here feed-forward layers go over the sequence part by part, so that gradients of their weights wait for all parts."""


@pytest.mark.parametrize("run", TILED)
def test_tiles_of_a_sequence_spare_gradients_less_those_of_weights_that_wait(run: str) -> None:
    """PyTorch's tracker: 76 of 344 MiB, 102 of 448; without what waits, tiles would be predicted 8 % too low."""
    whole = run.removesuffix("-tiled")
    measured, untiled = (OWN[name]["measured"]["tensor_gib_per_gpu"] for name in (run, whole))
    found, before = (predicted(name, OWN).tensor_bytes / 2**30 for name in (run, whole))
    assert found == pytest.approx(measured, rel=0.03)
    assert 0 < before - found < 1.5 * (untiled - measured)


APPROXIMATE = [
    "torch-tracked/8bv-6/dp8-tp4-full-8192-in_tiles",
    "torch-tracked/7b-6/dp2-cp4-products-16384",
]
"""Kinds that were new in November 2026: tiles beside tensor ranks, products that context ranks keep."""


@pytest.mark.parametrize("run", APPROXIMATE)
def test_kinds_that_meet_are_a_little_too_high(run: str) -> None:
    measured = OWN[run]["measured"]["tensor_gib_per_gpu"]
    assert 1.0 < predicted(run, OWN).tensor_bytes / 2**30 / measured < 1.04


APART = (*SAVED_AWAY, *TILED, *APPROXIMATE, KEPT_LAST, IN_STEPS)


@pytest.mark.parametrize("run", [run for run in OWN if run not in APART])
def test_peaks_where_sharded_gradients_and_the_root_count(run: str) -> None:
    measured = OWN[run]["measured"]["tensor_gib_per_gpu"]
    assert predicted(run, OWN).tensor_bytes / 2**30 == pytest.approx(measured, rel=0.02)


SUMS_HELD = "torch-transformers/t5-11b/full-512-mb4"
"""Of which the tracker has 44 sums of gradients of relative positions, 64 MiB each.

Autograd frees them: without the tracker no more than three are alive at once, sharded by FSDP2 or not.
"""


GIVEN_TO_LAYERS = "torch-transformers/t5-small/full-1024-mb16-accumulated"
"""Where layers are narrow beside what all of them are given, which is not counted: the tracker has nine arrays of
biases, heads x tokens x tokens, five of these of the micro-batch before, and a mask for each of 16 sequences.
"""


@pytest.mark.parametrize("run", sorted(MODULES.keys() - {SUMS_HELD, GIVEN_TO_LAYERS}))
def test_modules_of_transformers_keep_what_is_predicted(run: str) -> None:
    measured = MODULES[run]["measured"]["tensor_gib_per_gpu"]
    assert predicted(run, MODULES).tensor_bytes / 2**30 == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("run", sorted(ADAPTERS))
def test_adapters_keep_what_is_predicted(run: str) -> None:
    measured = ADAPTERS[run]["measured"]["tensor_gib_per_gpu"]
    assert predicted(run, ADAPTERS).tensor_bytes / 2**30 == pytest.approx(measured, rel=0.035)


@pytest.mark.parametrize("run", sorted(REPLICAS))
def test_replicas_hold_every_gradient_once_more_in_buckets(run: str) -> None:
    measured = REPLICAS[run]["measured"]["tensor_gib_per_gpu"]
    found = predicted(run, REPLICAS)
    assert found.tensor_bytes / 2**30 == pytest.approx(measured, rel=0.02)
    assert all("gradient_buckets" in moment.tensors for moment in found.memory_over_step)


def test_plain_replicas_have_buckets_and_those_of_fsdp_2_have_none() -> None:
    """DDP's reducer; FSDP2 over a mesh of replicas alone sums where gradients lie (torch/tiny-ddp-like)."""
    row = next(iter(REPLICAS.values()))

    def parts(stack: str) -> Collection[str]:
        plan, _ = plan_from_run({**row, "parallel": {**row["parallel"], "stack": stack}})
        return evaluate(plan).memory

    assert "gradient_buckets" in parts("torch-eager")
    assert "gradient_buckets" not in parts("torch-fsdp2")


@pytest.mark.parametrize("run", sorted(FLAT))
def test_flat_units_join_their_gradients_and_give_back_their_weights_before_these_are_reduced(
    run: str,
) -> None:
    """+12.8 % when sums in fp32 lay beside gathered weights, -7.4 % when those were kept, +6.0 % recomputed."""
    measured = FLAT[run]["measured"]["tensor_gib_per_gpu"]
    assert predicted(run, FLAT).tensor_bytes / 2**30 == pytest.approx(measured, rel=0.025)


@pytest.mark.parametrize("run", sorted(AUTOCAST))
def test_modules_under_autocast_keep_what_is_predicted(run: str) -> None:
    measured = AUTOCAST[run]["measured"]["tensor_gib_per_gpu"]
    assert predicted(run, AUTOCAST).tensor_bytes / 2**30 == pytest.approx(measured, rel=0.025)


def test_autocast_keeps_casts_of_weights_that_are_no_views() -> None:
    """Under full recomputation to the end of the forward: 12.1 GiB of the layers of Llama-2-7B, none under FSDP1."""
    row = AUTOCAST["torch-autocast/llama-2-7b/full-4096-mb2"]
    flat = row | {"parallel": row["parallel"] | {"stack": "hf-fsdp"}}
    own, views = (predicted("run", {"run": r}) for r in (row, flat))
    casts = [max(m.tensors.get("cast_weights", 0.0) for m in e.memory_over_step) for e in (own, views)]
    assert casts == [pytest.approx(2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008), rel=1e-3), 0.0]


def test_sums_that_the_tracker_holds_are_not_predicted() -> None:
    measured, sums = MODULES[SUMS_HELD]["measured"]["tensor_gib_per_gpu"], 44 * 64 / 1024
    assert measured - sums < predicted(SUMS_HELD, MODULES).tensor_bytes / 2**30 < measured


def test_biases_and_masks_that_all_layers_are_given_are_not_predicted() -> None:
    measured = MODULES[GIVEN_TO_LAYERS]["measured"]["tensor_gib_per_gpu"] * 2**30
    given = (9 * 8 + 16) * 1024**2 * 2
    found = predicted(GIVEN_TO_LAYERS, MODULES).tensor_bytes
    assert found < measured - given < 1.02 * found


EXACT = [
    "torch-transformers/bert-base/none-512-mb8",
    "torch-transformers/bert-large/none-512-mb16",
    "torch-transformers/gemma-2-9b/none-1024",
    "torch-transformers/gemma-2-27b/full-512-mb2",
    "torch-transformers/bert-large/full-512-plain-mb32-dropout",
    "torch-transformers/bert-large/none-512-mb16-dropout",
    "torch-transformers/bert-large/none-512-plain-mb16-dropout",
    "torch-transformers/gpt2-large/none-1024-plain",
    "torch-transformers/gpt2-large/none-1024-plain-dropout",
    "torch-transformers/gpt2-xl/full-1024-mb16-dropout",
    "torch-transformers/gpt2-xl/none-1024-mb4-dropout",
    "torch-transformers/opt-1.3b/none-2048-dropout",
    "torch-transformers/llama-3.2-1b/none-2048-plain",
    "torch-transformers/phi-2/none-2048",
    "torch-transformers/phi-2/none-512-mb4",
    "torch-transformers/phi-3-mini-4k/none-2046",
    "torch-transformers/phi-4-14b/none-4096",
]
"""Softmax and loss in 16 bits, tangents of soft caps, repeated keys, and results of attention laid out again."""


@pytest.mark.parametrize("run", EXACT)
def test_habits_of_families_are_all_that_modules_of_transformers_keep(run: str) -> None:
    measured = MODULES[run]["measured"]["tensor_gib_per_gpu"]
    assert predicted(run, MODULES).tensor_bytes / 2**30 == pytest.approx(measured, rel=0.0005)


def test_experts_are_padded_to_whole_ones_where_ranks_are_more() -> None:
    """PyTorch's tracker: the first of 32 ranks holds an eighth of Mixtral's experts, 21.1873 GiB in fp32."""
    memory = predicted("torch-transformers/mixtral-8x7b/none-2048", MODULES).memory
    assert memory["master_weights"] / 2**30 == pytest.approx(21.1873, rel=1e-4)
    assert memory["optimizer"] / 2**30 == pytest.approx(42.3746, rel=1e-4)


def test_grouped_updates_have_square_roots_that_fused_ones_have_not() -> None:
    """7b-6/dp2-full-256-clipped is fused; PyTorch's tracker has 4 bytes for each sharded parameter more of foreach."""
    row = OWN["torch-tracked/7b-6/dp2-full-256-clipped"]
    grouped = row | {"parallel": row["parallel"] | {"optim": "adamw_foreach"}}
    (one, several) = (predicted("run", {"run": r}) for r in (row, grouped))
    assert "optimizer_temporaries" not in one.memory_over_step[-1].tensors
    found = several.memory_over_step[-1].tensors
    assert found["optimizer_temporaries"] == pytest.approx(found["master_weights"])
    assert several.time["optimizer"] > 1.2 * one.time["optimizer"]


@pytest.mark.parametrize("stack", ["megatron", "megatron-serial", "nemo"])
def test_gradients_in_one_buffer_are_reduced_where_they_are(stack: str) -> None:
    """NVIDIA/Megatron-LM@core_v0.16.1 ``core/distributed/param_and_grad_buffer.py``: a bucket is a view of it."""
    job = Job(global_batch=8, seq_len=512, stack=stack)
    plan = Parallelism(data=8, zero_stage=1, shard_degree=8)
    found = Evaluator(load_model("llama-3.1-8b"), load_cluster("dgx-h100:1"), job).estimate(plan)
    assert not any("gradient_buffers" in moment.tensors for moment in found.memory_over_step)


def test_every_tensor_rank_makes_the_embeddings_gradient_whole() -> None:
    """PyTorch's tracker, 70b-4/dp8-tp8-every_second-4096: 128256 x 8192 in 16 bits, of which a rank keeps an eighth."""
    run = predicted("run", {"run": OWN["torch-tracked/70b-4/dp8-tp8-every_second-4096"]})
    last = max(run.memory_over_step, key=lambda moment: moment.tensor_bytes)
    embedding = 2 * 128256 * 8192
    head, layer = embedding / 8, 0.3985 * 2**30  # of the layer's reduction, by the tracker
    assert last.tensors["gradient_buffers"] == pytest.approx(
        embedding + embedding / 8 + head + layer, rel=2e-3
    )


def test_most_of_these_peaks_are_known_to_a_thousandth() -> None:
    measured = {run: row["measured"]["tensor_gib_per_gpu"] for run, row in OWN.items()}
    close = [r for r, size in measured.items() if predicted(r, OWN).tensor_bytes / 2**30 / size > 0.999]
    assert len(close) >= len(OWN) / 2


def test_the_parts_of_a_tracked_peak() -> None:
    """8b-dp8-full: what the tracker saw, in its categories [GiB]."""
    memory = {name: size / 2**30 for name, size in predicted("torch/8b-dp8-full", TRACKED).memory.items()}
    assert memory["master_weights"] == pytest.approx(3.7394, abs=1e-3)  # Sharded Param
    assert memory["optimizer"] == pytest.approx(7.4788, abs=1e-3)  # OptState
    assert memory["gathered_weights"] == pytest.approx(1.957, abs=1e-3)  # Unsharded Param
    assert memory["activations"] + memory["logits_and_loss"] == pytest.approx(6.0430 + 7.8281, abs=0.01)


def test_gradients_of_several_microbatches_wait_whole() -> None:
    """accelerate reduces with the last micro-batch: 4 bytes for each of 1.2358e9 parameters until then."""
    memory = predicted("torch/1b-accum4", TRACKED).memory
    assert memory["gradients"] == pytest.approx(4 * 1.2358144e9, rel=1e-3)


def test_a_fused_loss_never_holds_all_logits() -> None:
    whole, fused = (
        Evaluator(
            load_model("llama-3.1-8b"),
            load_cluster("dgx-h100:1"),
            Job(global_batch=8, seq_len=8192, fused_loss=fused, stack="hf-fsdp"),
        ).estimate(Parallelism(data=8, zero_stage=3, shard_degree=8, recompute="full"))
        for fused in (False, True)
    )
    assert whole.memory["logits_and_loss"] > 12 * 8192 * 128256
    assert fused.tensor_bytes < whole.tensor_bytes - 6.5 * 8192 * 128256
    assert fused.peak_phase == "backward"


def estimate(stack: str, **changes: Any) -> Estimate:
    options = {"data": 8, "zero_stage": 1, "shard_degree": 8, "num_microbatches": 2} | changes
    plan = Parallelism(**options)
    job = Job(global_batch=8 * plan.num_microbatches, seq_len=2048, stack=stack)
    return Evaluator(load_model("llama-2-7b"), load_cluster("dgx-h100:1"), job).estimate(plan)


def test_stacks_that_cast_where_they_gather_keep_no_copy_in_16_bits() -> None:
    assert not load_software("torch-fsdp2").keeps_copy
    sharded = estimate("torch-fsdp2", zero_stage=3)
    assert "weights" not in sharded.memory
    kept = estimate("megatron")
    assert kept.memory["weights"] == pytest.approx(2 * 6_738_415_616, rel=1e-3)


def test_one_microbatch_has_few_sharded_gradients_at_the_peak() -> None:
    """The head's and the last layer's: the peak is attention of the layer before, beside its own gradients."""
    one = estimate("torch-fsdp2", zero_stage=3, num_microbatches=1)
    two = estimate("torch-fsdp2", zero_stage=3)
    assert one.memory["gradients"] == pytest.approx(4 * (32000 * 4096 + 202_383_360) / 8, rel=1e-3)
    assert two.memory["gradients"] == pytest.approx(4 * 6_738_415_616 / 8, rel=1e-2)
