"""What submeshes offer for stages: rates that no stage is below."""

from itertools import product

import numpy as np
import pytest
from small_cases import cluster_with, small_llama, small_mixture

from planner.evaluation import Evaluator
from planner.evaluation.memory import device_memory
from planner.evaluation.stages import StageShape
from planner.models.model import Model
from planner.plans import Job, Pins, Sharding, ZeroStage
from planner.search.offers import Offers
from planner.search.submeshes import PoolPrices, Share

SHARES = [Share(8, 4, 2, "SHARD_GRAD_OP", "interleaved"), Share(8, 4, 3, "FULL_SHARD", "interleaved")]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("model", [small_llama(), small_mixture()], ids=lambda model: model.name)
def test_ends_of_a_pipeline_take_no_less_than_is_said(model: Model, share: Share) -> None:
    """Also where gathers of large layers, which the first one of a stage waits for, hide behind an embedding."""
    evaluator = Evaluator(model, cluster_with("dgx-a100-80g:1"), Job(global_batch=32, seq_len=1024))
    prices = PoolPrices(evaluator, Pins(), 8)
    offered = Offers(evaluator, [prices]).of(0, 8, share, 2)
    assert offered is not None
    rank, kind = offered.rank, evaluator.main_layer
    assert rank.first.min() >= 0
    assert rank.last.min() >= 0
    for offer, local in zip(rank.offers, offered.locals, strict=True):
        for layers, first, last in ((1, True, False), (3, True, False), (1, False, True), (3, False, True)):
            cost, _ = prices.cost(local, StageShape(((kind, layers),), first, last))
            least = layers * offer.seconds.sum(axis=0) + (rank.first if first else rank.last)
            found = np.array([cost.forward, cost.backward_input, cost.backward_weight])
            assert (least <= found * (1 + 1e-9)).all()


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("model", [small_llama(), small_mixture()], ids=lambda model: model.name)
def test_rates_of_a_pool_are_the_least_of_what_its_submeshes_offer(
    model: Model, share: Share, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though no memory is measured for them."""
    evaluator = Evaluator(model, cluster_with("dgx-a100-80g:1"), Job(global_batch=32, seq_len=1024))
    prices = PoolPrices(evaluator, Pins(), 8)
    offers = Offers(evaluator, [prices])
    counts = [evaluator.graph.sequence.count(kind) for kind in offers.kinds]
    found = []
    for size in prices.sizes:
        if offered := offers.of(0, size, share, 1):
            layers = np.min([way.rates.seconds.sum(axis=1) for way in offered.ways], axis=0)
            ends = np.min([[way.first.sum(), way.last.sum()] for way in offered.ways], axis=0)
            found.append(size / prices.devices * np.concatenate((counts * layers, ends)))
    monkeypatch.setattr("planner.search.offers.device_memory", None)
    assert offers.lightest(0, 8, share) is not None
    assert found
    assert Offers(evaluator, [prices]).rates(0, share) == pytest.approx(np.min(found, axis=0), rel=1e-12)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("stack", ["torch-fsdp2", "torch-fsdp1", "megatron", "deepspeed", "jax-xla"])
@pytest.mark.parametrize("model", [small_llama(), small_mixture()], ids=lambda model: model.name)
def test_stages_take_no_less_memory_than_is_sure(model: Model, stack: str, zero: ZeroStage) -> None:
    """With as many micro-batches in flight as there may be, under any policy, at either end or none."""
    job = Job(global_batch=32, seq_len=1024, stack=stack)
    evaluator = Evaluator(model, cluster_with("dgx-a100-80g:1"), job)
    if zero not in evaluator.software.zero_stages:
        pytest.skip(f"{stack} has no ZeRO-{zero}")
    prices, kind = PoolPrices(evaluator, Pins(), 8), evaluator.main_layer
    mesh, software = evaluator.mesh, evaluator.software
    sharding: Sharding = "NO_SHARD" if zero < 2 else "SHARD_GRAD_OP" if zero == 2 else "FULL_SHARD"
    ends = ((False, False), (True, False), (False, True))
    for sequences in (8, 32):
        offered = Offers(evaluator, [prices]).lightest(
            0, 4, Share(sequences, 32 // sequences, zero, sharding, "gpipe")
        )
        assert offered is not None
        for offer, local in zip(offered.rank.offers, offered.locals, strict=True):
            for layers, held, (first, last) in product((1, 2, 5), range(1, local.num_microbatches + 1), ends):
                cost, _ = prices.cost(local, StageShape(((kind, layers),), first, last))
                sure = held - (held == local.num_microbatches > 1)
                least = layers * (offer.states + sure * offer.kept).min() + offer.memory @ (1, first, last)
                activations = held * cost.saved_bytes
                taken = device_memory([cost], activations, job, local, mesh(local), software)
                assert least <= taken.total * (1 + 1e-9)
