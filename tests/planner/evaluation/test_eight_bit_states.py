"""Optimizer states in 8 bits: which tables keep theirs in fp32, and how transformers calls either kind."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.exporters.hf_trainer import OPTIMIZERS as EXPORTED
from planner.importers.hf_trainer import OPTIMIZERS as IMPORTED
from planner.models.catalog import load_model
from planner.plans import Job, Optimizer, Parallelism

EIGHT_BITS = 2 * (1 + 4 / 256)
TABLE = 128256


def states(model: str, optimizer: Optimizer, data: int) -> float:
    """Of one of ``data`` ranks that share them [bytes]."""
    job = Job(global_batch=8, seq_len=512, stack="hf-fsdp", optimizer=optimizer)
    plan = Parallelism(
        data=data, num_microbatches=8 // data, zero_stage=3 if data > 1 else 0, shard_degree=data
    )
    cluster = load_cluster("dgx-h100:1" if data > 1 else "dgx-h100:1x1")
    return Evaluator(load_model(model), cluster, job).estimate(plan).memory["optimizer"]


@pytest.mark.parametrize(("model", "hidden"), [("llama-3.1-8b", 4096), ("llama-3.2-1b", 2048)])
@pytest.mark.parametrize("data", [1, 8])
def test_transformers_keeps_states_of_embeddings_in_fp32_beside_8_bits(
    model: str, hidden: int, data: int
) -> None:
    """``trainer.py`` of transformers: ``optim_bits`` of 32 for every ``nn.Embedding``, tied to the head or not."""
    found = states(model, "adamw_bnb_8bit", data) - states(model, "adamw8bit", data)
    assert found == pytest.approx((8 - EIGHT_BITS) * TABLE * hidden / data, rel=1e-4)


def test_trainer_reads_what_is_exported_for_it_as_the_same() -> None:
    assert {name: IMPORTED[word] for name, word in EXPORTED.items()} == {name: name for name in EXPORTED}
    assert IMPORTED["paged_adamw_8bit"] == IMPORTED["adamw_8bit"] == "adamw_bnb_8bit"


def test_trainer_knows_every_name() -> None:
    transformers = pytest.importorskip("transformers")
    known = {name.value for name in transformers.training_args.OptimizerNames}
    assert set(EXPORTED.values()) | (IMPORTED.keys() - {"adamw_hf"}) <= known
