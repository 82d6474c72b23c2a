"""`verify --with jax` of families that are not decoders: what their blocks have that those of decoders have not."""

from collections.abc import Mapping
from typing import Any

import pytest
from tiny_llama import installed, tiny_plan

from planner.models.catalog import sequence_length
from planner.models.model import Model
from planner.verification.tools import verify

pytestmark = [pytest.mark.jax, pytest.mark.skipif(not installed("jax"), reason="jax is not installed")]

IMAGES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "image_size": 16,
    "patch_size": 4,
}
BERT = {
    "vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 96,
    "max_position_embeddings": 32, "type_vocab_size": 2, "embedding_size": 32,
}  # fmt: skip

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "vit": {**IMAGES, "intermediate_size": 96},
    "dinov2": {**IMAGES, "mlp_ratio": 2},
    "clip_vision_model": {**IMAGES, "intermediate_size": 96, "projection_dim": 64},
    "siglip_vision_model": {**IMAGES, "intermediate_size": 96},
    "electra": BERT,
}


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("family", FAMILIES)
def test_exported_plans_train_as_one_device_does(family: str) -> None:
    """Over tensor and shards; a step moves what it is taken on, so there is a gradient."""
    model = Model(name=family, family=family, config=FAMILIES[family])
    degrees = {"data": 4, "tensor": 2, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4}
    plan = tiny_plan(model, **degrees)
    length = {"seq_len": sequence_length(model) or 32}
    answer = verify(plan.model_copy(update={"job": plan.job.model_copy(update=length)}), "jax")
    assert answer.passed, answer.failures()
    assert abs(answer.checks[1].expected / answer.checks[0].expected - 1) > 1e-4
