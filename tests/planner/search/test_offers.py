"""What submeshes offer for stages: rates that no stage is below."""

import numpy as np
import pytest
from small_cases import cluster_with, small_llama, small_mixture

from planner.evaluation import Evaluator
from planner.evaluation.stages import StageShape
from planner.models.model import Model
from planner.plans import Job, Pins
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
    assert found
    assert Offers(evaluator, [prices]).rates(0, share) == pytest.approx(np.min(found, axis=0), rel=1e-12)
