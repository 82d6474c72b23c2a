"""What runs again in the backward: layers as a whole, or what is read where a checkpoint stops early."""

from importlib.util import find_spec

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.models.dropout import with_dropout
from planner.plans import Job, Parallelism

BATCH, SEQ, LAYERS, HIDDEN, WORDS = 64, 2048, 96, 12288, 50257
"""GPT-3 with 175 billion parameters."""


def evaluator_of(stack: str, model: str = "gpt-3-175b", dropout: float = 0.0) -> Evaluator:
    job = Job.model_validate({"global_batch": BATCH, "seq_len": SEQ, "stack": stack})
    return Evaluator(with_dropout(load_model(model), dropout), load_cluster("dgx-a100-80g:8"), job)


def repeated_flops(stack: str, dropout: float = 0.0) -> float:
    """Of a step with full recomputation: what HFU counts beyond MFU."""
    evaluator = evaluator_of(stack, dropout=dropout)
    found = evaluator.estimate(Parallelism(tensor=8, pipeline=8, num_microbatches=BATCH, recompute="full"))
    return (found.hfu - found.mfu) * found.step_time_s * evaluator.peak * 64


FORWARD = 24 * BATCH * SEQ * LAYERS * HIDDEN**2 * (1 + SEQ / (12 * HIDDEN))
"""Of layers, a quarter of 96 B s l h^2 (1 + s / 6h), with half of the scores as the mask lets pass.

Source: Narayanan et al., arXiv:2104.04473, appendix: the layers' forward is counted twice with recomputation.
"""


@pytest.mark.parametrize(
    "stack",
    [
        "megatron",
        "megatron-2021",
        "nemo",
        "deepspeed",
        "internevo",
        "composer-2023",
        "hf-reentrant",
        "llm-shearing",
    ],
)
def test_a_checkpoint_function_repeats_the_whole_forward_of_layers(stack: str) -> None:
    assert repeated_flops(stack) == pytest.approx(FORWARD, rel=1e-3)


@pytest.mark.parametrize("stack", ["torch-fsdp2", "jax-xla", "nemo-automodel", "hf-fsdp"])
def test_what_stops_early_repeats_no_last_product(stack: str) -> None:
    """Of 12 h^2 weights of a layer, 4 h^2 are in it."""
    last = 8 * BATCH * SEQ * LAYERS * HIDDEN**2
    assert repeated_flops(stack) == pytest.approx(FORWARD - last, rel=1e-3)


def test_a_mask_of_what_the_last_product_makes_repeats_that_too() -> None:
    assert repeated_flops("hf-fsdp", dropout=0.1) == pytest.approx(FORWARD, rel=1e-3)


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("stack", "reentrant"), [("hf-reentrant", True), ("hf-fsdp", False)])
def test_checkpoints_of_pytorch_repeat_what_the_stack_says(
    stack: str, reentrant: bool, dropout: float
) -> None:
    """Of two products with an activation between them, as a feed-forward layer's."""
    import torch
    from torch.utils.checkpoint import checkpoint
    from torch.utils.flop_counter import FlopCounterMode

    products = torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)
    layer = torch.nn.Sequential(*products, torch.nn.Dropout(dropout))
    tokens = torch.randn(16, 8, requires_grad=True)
    product = 2 * 16 * 8 * 32
    with FlopCounterMode(display=False) as counted:
        checkpoint(layer, tokens, use_reentrant=reentrant).sum().backward()
    again = counted.get_total_flops() - 6 * product  # forward two, backward four
    assert again == (1 if load_software(stack).stops_early and not dropout else 2) * product


def test_full_recomputation_takes_as_long_as_the_forward() -> None:
    """22B: 7.7 ms forward; backward 11.9 ms, with recomputation 19.5. Korthikanti et al., arXiv:2205.05198, table 4."""
    evaluator = evaluator_of("megatron-2022")
    plan = Parallelism(tensor=8, micro_batch=4, num_microbatches=16, sequence_parallel=False)
    full, none = (evaluator.block(plan, evaluator.main_layer, policy, {}) for policy in ("full", "none"))
    again = full.recompute + sum(full.comm_backward.values()) - sum(none.comm_backward.values())
    forward = full.forward + sum(full.comm_forward.values())
    assert again / forward == pytest.approx((19.5 - 11.9) / 7.7, rel=0.03)


def test_a_layer_of_experts_is_repeated_with_its_way_back() -> None:
    """Megatron's ``--recompute-modules moe``: one checkpoint, so that tokens travel there and back once more."""
    evaluator = evaluator_of("megatron", "mixtral-8x7b")
    plan = Parallelism(data=8, expert=8, num_microbatches=8)
    none, moe = (evaluator.block(plan, evaluator.main_layer, policy, {}) for policy in ("none", "mlp"))
    assert moe.sent_bytes["all_to_all"] == pytest.approx(6 / 4 * none.sent_bytes["all_to_all"])
