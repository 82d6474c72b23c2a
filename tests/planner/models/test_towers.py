"""Text towers of models with several: what their tables leave out, as transformers writes them."""

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from planner.errors import InputError
from planner.models.catalog import load_model
from planner.models.families import DECODERS, SAME_TOWER

SIZES = tomllib.loads(
    (resources.files("planner.models") / "data" / "towers.toml").read_text(encoding="utf-8")
)

GEMMA_3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "sliding_window": 1024,
}
"""google/gemma-3-4b-it, ``text_config``: no heads, no vocabulary."""
LLAVA_7B = {"vocab_size": 32064, "max_position_embeddings": 4096}
"""llava-hf/llava-1.5-7b-hf, ``text_config``: of Llama 2 only what LLaVA changed."""
QWEN_2_5_VL_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
}

QWEN_3_OMNI = {
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 152064,
}


@pytest.mark.parametrize(
    ("kind", "tower", "parameters"),
    [
        ("gemma3_text", GEMMA_3_4B, 3_880_263_168),
        ("llama", LLAVA_7B, 6_738_939_904),
        ("qwen2_5_vl_text", QWEN_2_5_VL_7B, 7_615_616_512),
        ("qwen2_5_omni_text", QWEN_2_5_VL_7B, 7_615_616_512),
        ("qwen3_omni_moe_text", QWEN_3_OMNI, 30_532_646_912),
    ],
)
def test_towers_have_the_parameters_of_their_class(
    tmp_path: Path, kind: str, tower: dict[str, Any], parameters: int
) -> None:
    """transformers 5.23.0 on the meta device; of Qwen 2.5 VL those of Qwen 2.5, which has the same decoder."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "several", "text_config": {"model_type": kind, **tower}}))
    assert load_model(path).parameters == parameters


def test_a_configuration_by_itself_names_all_its_sizes(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "gemma3_text", **GEMMA_3_4B}))
    with pytest.raises(InputError, match="missing key 'num_attention_heads'"):
        load_model(path)
    path.write_text(json.dumps({"model_type": "qwen2_5_vl", **QWEN_2_5_VL_7B}))
    assert load_model(path).family == "qwen2"


@pytest.mark.parametrize("kind", SIZES)
def test_sizes_are_those_of_the_class(kind: str) -> None:
    configurations = pytest.importorskip("transformers").CONFIG_MAPPING
    defaults = {field: getattr(configurations[kind], field, None) for field in SIZES[kind]}
    assert defaults == SIZES[kind]


def test_every_tower_has_a_reader() -> None:
    assert {SAME_TOWER.get(kind, kind) for kind in SIZES} <= set(DECODERS)
    assert set(SAME_TOWER.values()) <= set(DECODERS)


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_towers_are_found_by_each_name_of_theirs(tmp_path: Path, key: str) -> None:
    """InternVL has ``llm_config``, DeepSeek-VL2 and Janus ``language_config``; other towers are left alone."""
    path = tmp_path / "config.json"
    tower = {"model_type": "qwen2", **QWEN_2_5_VL_7B}
    vision = {"model_type": "intern_vit_6b", "hidden_size": 1024}
    path.write_text(json.dumps({"model_type": "internvl_chat", "vision_config": vision, key: tower}))
    model = load_model(path)
    assert (model.family, model.parameters) == ("qwen2", 7_615_616_512)
    assert [note for note in model.notes if "has vision_config beside its text tower" in note]


def test_a_text_tower_alone_has_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    tower = {"model_type": "qwen2", **QWEN_2_5_VL_7B}
    path.write_text(
        json.dumps({"model_type": "several", "text_config": tower, "generation_config": {"top_k": 1}})
    )
    assert not load_model(path).notes


def test_a_tower_that_is_trained_beside_another_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "clip", "text_config": {"model_type": "clip_text_model"}}))
    with pytest.raises(InputError, match="is trained beside a tower of images"):
        load_model(path)


def test_towers_within_towers_are_found(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    inner = {"model_type": "qwen2_5_omni_text", **QWEN_2_5_VL_7B}
    thinker = {"model_type": "qwen2_5_omni_thinker", "text_config": inner, "audio_config": {"d_model": 1280}}
    talker = {"hidden_size": 896}
    path.write_text(
        json.dumps({"model_type": "qwen2_5_omni", "thinker_config": thinker, "talker_config": talker})
    )
    model = load_model(path)
    assert model.parameters == 7_615_616_512
    assert "has talker_config and audio_config beside its text tower" in model.notes[0]
