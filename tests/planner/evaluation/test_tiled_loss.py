"""Losses over tiles of logits, which are made again for their gradient, against times that were measured alone."""

import json
from pathlib import Path

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism

VOCABULARY, SEQ = 128256, 4096


def compute_seconds(
    folder: Path, cluster: str, hidden: int, vocabulary: int, sequences: int, job: Job
) -> float:
    """Of a step of one layer on one device, with its head and its loss [s]."""
    sizes = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden,
        "num_hidden_layers": 1,
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": hidden // 128,
        "vocab_size": vocabulary,
        "max_position_embeddings": SEQ,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(sizes))
    plan = Parallelism(data=1, micro_batch=sequences, recompute="none")
    model = load_model(str(folder / "config.json"))
    return Evaluator(model, load_cluster(cluster), job).estimate(plan).time["compute"]


@pytest.mark.parametrize(
    ("cluster", "stack", "hidden", "sequences", "measured"),
    [
        ("dgx-h100:1x1", "levanter-fa4", 2560, 8, 0.03373 + 0.12356),
        ("gb200-nvl72:1x1", "levanter-2026.08", 6144, 16, 0.4359),
    ],
)
def test_a_tiled_loss_takes_as_long_as_measured(
    tmp_path: Path, cluster: str, stack: str, hidden: int, sequences: int, measured: float
) -> None:
    """The head and its loss over 128,256 words, forward and backward; nothing was fitted on them.

    Source: marin-community/marin issue 6596 (H100, 32,768 tokens, the default of 8,192 rows a tile) and pull request
    8368 (GB200, 65,536 tokens, products of gradients in fp32, larger tiles than the default's).
    """
    job = Job.model_validate({"global_batch": sequences, "seq_len": SEQ, "stack": stack, "fused_loss": True})
    with_head, without = (
        compute_seconds(tmp_path, cluster, hidden, words, sequences, job) for words in (VOCABULARY, 256)
    )
    assert with_head - without == pytest.approx(measured, rel=0.08)


def test_logits_are_made_once_where_all_are_held(tmp_path: Path) -> None:
    """Tiles cost as much more as the forward of the head, which issue 6596 has by itself."""
    jobs = (
        Job.model_validate({"global_batch": 8, "seq_len": SEQ, "stack": "levanter-fa4", "fused_loss": fused})
        for fused in (False, True)
    )
    whole, tiled = (compute_seconds(tmp_path, "dgx-h100:1x1", 2560, VOCABULARY, 8, job) for job in jobs)
    assert tiled - whole == pytest.approx(0.03373, rel=0.08)
