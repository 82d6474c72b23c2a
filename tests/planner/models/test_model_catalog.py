"""Names, files, and every way in which they can be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner
from planner.errors import InputError, UnknownName
from planner.graph import count_parameters
from planner.models.catalog import build_graph, list_models, load_model, sequence_length
from planner.models.model import Model

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
}
LLAMA_PARAMETERS = 74_560
"""Of transformers' LlamaForCausalLM with these sizes (tests/data/hf_parameters.jsonl, first row)."""


def write(folder: Path, config: Any, name: str = "config.json") -> Path:
    path = folder / name
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3-8b", "llama-3-8b"),
        ("LLaMA-3-8B", "llama-3-8b"),
        ("llama3-8b", "llama-3-8b"),
        ("Meta-Llama-3-8B", "llama-3-8b"),
        ("meta-llama/Llama-3.1-70B", "llama-3.1-70b"),
        ("llama3.1_70b", "llama-3.1-70b"),
        ("deepseek-v3", "deepseek-v3-671b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3-671b"),
        ("deepseek-v2-lite", "deepseek-v2-lite-16b"),
        ("kimi-k2", "kimi-k2-1t"),
        ("Llama-4-Scout", "llama-4-scout-17b-16e"),
        ("gpt2", "gpt2"),
        ("gpt3-175b", "gpt-3-175b"),
        ("gemma2-9b", "gemma-2-9b"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("t5-small", "t5-small"),
        ("bert-base", "bert-base"),
    ],
)
def test_names_have_aliases(spelling: str, name: str) -> None:
    assert load_model(spelling).name == name


def test_every_shipped_name_and_repository_loads() -> None:
    for name in list_models():
        model = load_model(name)
        assert model.name == name
        assert model.source
        assert load_model(name.upper()) == model
    assert len(list_models()) == 70


def test_ambiguous_name_lists_the_candidates() -> None:
    with pytest.raises(InputError, match="'llama-3.2' fits several: llama-3.2-1b, llama-3.2-3b"):
        load_model("llama-3.2")


@pytest.mark.parametrize("name", ["lama-3-8b", "no-such-model", "", "a/b", "x" * 5000, "nul\0byte"])
def test_unknown_name(name: str) -> None:
    with pytest.raises(InputError):
        load_model(name)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown model 'lama-3-8b'; did you mean .*llama-3-8b"):
        load_model("lama-3-8b")


def test_config_file_and_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = write(folder, LLAMA)
    for source in (path, folder, str(path), str(folder)):
        model = load_model(source)
        assert model.name == "my-llama"
        assert model.parameters == LLAMA_PARAMETERS
        assert model.architecture == "decoder"
    assert "torch_dtype" not in model.config
    assert count_parameters(build_graph(model, 16)) == LLAMA_PARAMETERS


def test_text_tower_of_a_nested_config(tmp_path: Path) -> None:
    tower = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8}
    tower.pop("tie_word_embeddings")
    path = write(tmp_path, {"model_type": "gemma3", "text_config": tower, "tie_word_embeddings": True})
    model = load_model(path)
    assert model.family == "gemma3_text"
    assert "text tower" in model.source
    assert build_graph(model, 8).tied


def test_graph_file_round_trip(tmp_path: Path) -> None:
    graph = build_graph(load_model("llama-3-8b"), 4096)
    model = load_model(write(tmp_path, graph.model_dump_json(), "my.json"))
    assert model.family == "graph"
    assert model.parameters == 8_030_261_248
    assert build_graph(model, 4096) == graph
    longer = build_graph(model, 8192)
    assert longer == build_graph(load_model("llama-3-8b"), 8192)


def test_attention_of_a_graph_file_needs_heads(tmp_path: Path) -> None:
    file = tmp_path / "headless.json"
    file.write_text(build_graph(load_model("gpt2"), 512).model_dump_json().replace('"heads"', '"groups"'))
    with pytest.raises(InputError, match="queries of attention need a dim heads: batch, seq, groups"):
        planner.plan(str(file), "dgx-h100:1", global_batch=8, seq_len=512)


def test_model_survives_json() -> None:
    for name in ("mixtral-8x7b", "resnet-50"):
        model = load_model(name)
        again = Model.model_validate_json(model.model_dump_json())
        assert again == model
        assert build_graph(again, sequence_length(model) or 64) == build_graph(
            model, sequence_length(model) or 64
        )


def test_graphs_are_cached_by_value() -> None:
    model = load_model("llama-3-8b")
    assert build_graph(model, 128) is build_graph(model.model_copy(), 128)
    assert build_graph(model, 128) is not build_graph(model, 256)


BROKEN_FILES = [
    ("", "is empty"),
    ("   \n", "is empty"),
    ("{", "is not valid JSON"),
    ('{"model_type": "llama", "hidden_si', "is not valid JSON"),
    ("hello", "is not valid JSON"),
    ("[1, 2]", "must be a table of keys, found a list"),
    ("3", "must be a table of keys, found a number"),
    ("null", "must be a table of keys, found nothing"),
    ("[" * 100_000, "config.json is nested too deeply"),
    ("{}", "missing key 'model_type'"),
    ('{"model_type": "lama"}', "unknown model_type in .*'lama'; did you mean"),
    ('{"model_type": 3}', "model_type must be a string, found 3"),
    ('{"model_type": ["llama"]}', "model_type must be a string"),
    ('{"model_type": "jamba"}', "jamba has state-space layers .*trace the model as FILE.py:NAME"),
    ('{"model_type": "kimi_linear"}', "kimi_linear has linear attention .*trace the model"),
    (
        '{"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}}',
        "stores weights with bitsandbytes, which are not trained",
    ),
    ('{"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}', "missing key"),
    ('{"blocks": [], "layers": [], "dims": {}}', "config.json: name: is missing"),
]


@pytest.mark.parametrize(("text", "message"), BROKEN_FILES)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        load_model(path)
    assert "config.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_file(tmp_path: Path) -> None:
    """Editors on Windows begin files with one."""
    marked = tmp_path / "config.json"
    marked.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert load_model(marked).parameters == load_model(write(tmp_path, LLAMA, "plain.json")).parameters


def test_bloom_is_read_as_its_checkpoints_write_it(tmp_path: Path) -> None:
    """``n_embed`` stands for ``hidden_size``, and is taken first (transformers, ``BloomConfig``)."""
    config = {"model_type": "bloom", "vocab_size": 250880, "n_layer": 24, "num_attention_heads": 16}
    assert load_model(write(tmp_path, {**config, "n_embed": 1024})).parameters == 559_214_592


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not text .byte 0 is not UTF-8"):
        load_model(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        load_model(tmp_path / "other.json")
    with pytest.raises(InputError, match="no such file"):
        load_model(tmp_path / "folder" / "config.json")


BROKEN_KEYS = [
    ({"num_hidden_layers": None}, "missing key 'num_hidden_layers'"),
    ({"hidden_size": 0}, "hidden_size must be from 1"),
    ({"hidden_size": -64}, "hidden_size must be from 1"),
    ({"hidden_size": "64"}, "hidden_size must be a whole number, found '64'"),
    ({"hidden_size": 64.5}, "hidden_size must be a whole number"),
    ({"hidden_size": True}, "hidden_size must be a whole number"),
    ({"hidden_size": 66}, "hidden_size 66 is not a multiple of 4 heads"),
    ({"vocab_size": 0}, "vocab_size must be from 1"),
    ({"vocab_size": 1e300}, "vocab_size must be from 1"),
    ({"intermediate_size": []}, "intermediate_size must be a whole number"),
    ({"num_key_value_heads": 3}, "num_key_value_heads must divide the 4 attention heads"),
    ({"num_attention_heads": 0}, "num_attention_heads must be from 1"),
    ({"head_dim": 0}, "head_dim must be from 1"),
    ({"num_hidden_layers": 10**8}, "num_hidden_layers must be from 1 to 10000"),
    ({"tie_word_embeddings": "no"}, "tie_word_embeddings must be true or false"),
    ({"hidden_act": 3}, "hidden_act must be a string"),
    ({"hidden_act": "sillu"}, "unknown hidden_act in .*: 'sillu'; did you mean silu"),
    ({"hidden_act": "zz"}, "unknown hidden_act in .*: 'zz'; transformers has no such function"),
    ({"layer_types": "full"}, "layer_types must be a list"),
    ({"layer_types": ["full_attention"]}, "layer_types lists 1 layers"),
    ({"layer_types": ["full_attention", "odd"]}, "layer_types has 'odd'"),
    ({"layer_types": ["full_attention", "sliding_attention"]}, "missing key 'sliding_window'"),
    ({"model_type": "mistral", "num_key_value_heads": None}, "missing key 'num_key_value_heads'"),
    ({"model_type": "qwen3"}, "missing key 'head_dim'"),
    ({"model_type": "mixtral"}, "missing key 'num_local_experts'"),
    ({"model_type": "mixtral", "num_local_experts": 4}, "missing key 'num_experts_per_tok'"),
    (
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5},
        "num_experts_per_tok must be at most the 4 experts",
    ),
    ({"model_type": "deepseek_v3"}, "missing key 'first_k_dense_replace'"),
    ({"model_type": "deepseek_v3", "first_k_dense_replace": 1}, "missing key 'kv_lora_rank'"),
    ({"model_type": "gpt2"}, "missing key 'n_positions' or 'max_position_embeddings'"),
    ({"model_type": "bert"}, "missing key 'max_position_embeddings'"),
    ({"model_type": "bert", "architectures": ["BertForFun"]}, "architectures has 'BertForFun'"),
    (
        {"model_type": "modernbert", "sparse_prediction": True},
        "sparse_prediction needs max_predictions_per_seq, the tokens of each sequence that are predicted",
    ),
    (
        {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 3},
        "num_kv_heads must divide",
    ),
    ({"model_type": "t5"}, "missing key 'num_heads'"),
    ({"model_type": "whisper"}, "missing key 'encoder_attention_heads'"),
    ({"model_type": "vit"}, "missing key 'image_size'"),
    ({"model_type": "vit", "image_size": 224, "patch_size": 15}, "patch_size must divide image_size 224"),
    ({"model_type": "dit", "input_size": 32, "patch_size": 2}, "missing key 'num_heads'"),
    ({"model_type": "resnet"}, "depths must be a list of sizes"),
    ({"model_type": "resnet", "depths": [3], "hidden_sizes": [0]}, "hidden_sizes must hold positive"),
    ({"model_type": "resnet", "depths": [3], "hidden_sizes": [8, 8]}, "depths has 1 stages"),
    ({"model_type": "resnet", "layer_type": "basic"}, "layer_type must be 'bottleneck'"),
    ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm is not supported"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN_KEYS, ids=lambda value: str(value)[:60])
def test_wrong_keys_are_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = write(tmp_path, LLAMA | change)
    with pytest.raises(InputError, match=message) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA, "head_dim", "sliding_window", "layer_types"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()),
    ),
    st.sampled_from(["llama", "mixtral", "gpt2", "qwen2_moe", "deepseek_v3", "t5", "vit", "resnet"]),
)
@settings(deadline=None, max_examples=200)
def test_garbage_is_refused_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any], family: str
) -> None:
    path = write(tmp_path_factory.mktemp("garbage"), {**LLAMA, **config, "model_type": family})
    refusal = ""
    try:
        parameters = load_model(path).parameters
    except InputError as error:
        parameters, refusal = 0, str(error)
    assert (parameters > 0) == (refusal == "")
    assert "\n" not in refusal
    assert refusal == "" or str(path) in refusal


def test_sequences_longer_than_the_position_table() -> None:
    with pytest.raises(InputError, match="gpt2: a sequence of 2048 tokens is longer than its table of 1024"):
        build_graph(load_model("gpt2"), 2048)
    with pytest.raises(InputError, match="longer than its table of 448"):
        build_graph(load_model("whisper-large-v2"), 449)


@pytest.mark.parametrize("length", [0, -1])
def test_sequence_length_is_positive(length: int) -> None:
    with pytest.raises(InputError, match="must be positive"):
        build_graph(load_model("llama-3-8b"), length)


@pytest.mark.parametrize(
    ("name", "tokens"), [("vit-b-16", 197), ("vit-h-14", 257), ("dit-xl-2", 256), ("resnet-50", 1)]
)
def test_images_fix_the_sequence(name: str, tokens: int) -> None:
    model = load_model(name)
    assert sequence_length(model) == tokens
    graph = build_graph(model, tokens)
    assert graph.dims[graph.token_dim] == tokens
    with pytest.raises(InputError, match=f"has {tokens} tokens whatever the job"):
        build_graph(model, tokens + 1)


def test_text_leaves_the_sequence_to_the_job() -> None:
    assert sequence_length(load_model("llama-3-8b")) is None
    assert sequence_length(load_model("t5-small")) is None


@pytest.mark.parametrize("name", ["llama-3.2-1b", "vit-b-16"])
def test_a_printed_model_is_a_model_file(tmp_path: Path, name: str) -> None:
    model = load_model(name)
    printed = {"schema": "meshwright/model/1", **model.model_dump(mode="json"), "parameters": 1}
    assert load_model(write(tmp_path, printed, "printed.json")) == model
    with pytest.raises(UnknownName, match="family in .*did you mean llama"):
        load_model(write(tmp_path, {**printed, "family": "lama"}, "printed.json"))


def test_a_plan_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has schema 'meshwright/plan/1', which is no model"):
        load_model(write(tmp_path, {"schema": "meshwright/plan/1"}))


def test_weights_that_are_stored_narrower_than_they_are_trained_are_noted(tmp_path: Path) -> None:
    config = dict(load_model("llama-3.2-1b").config) | {"model_type": "llama"}
    stored = write(tmp_path, config | {"quantization_config": {"quant_method": "fp8"}})
    [note] = load_model(stored).notes
    assert "stores weights in fp8; they are planned to be trained in the job's precision" in note
    assert planner.plan(stored, "dgx-h100:1", global_batch=8, seq_len=512).warnings.count(note) == 1
    assert load_model(write(tmp_path, config)).notes == ()


def test_a_program_without_the_name_of_its_function_is_refused_by_what_is_missing(tmp_path: Path) -> None:
    program = tmp_path / "net.py"
    program.write_text("def loss(params, x): ...\n")
    with pytest.raises(InputError, match=r"net.py is a program.*net.py:NAME"):
        load_model(program)


@pytest.mark.parametrize(
    ("base", "both", "named"),
    [
        ("whisper-large-v2", "WhisperForConditionalGeneration", "WhisperForCausalLM"),
        ("t5-small", "T5Model", "T5EncoderModel"),
    ],
)
def test_one_tower_of_an_encoder_decoder_is_not_read_as_both(
    tmp_path: Path, base: str, both: str, named: str
) -> None:
    model = load_model(base)
    config = {**model.config, "model_type": model.family}
    assert load_model(write(tmp_path, config | {"architectures": [both]})).parameters == model.parameters
    with pytest.raises(InputError, match=f"{named!r}, one tower of an encoder-decoder.*trace the model"):
        load_model(write(tmp_path, config | {"architectures": [named]}))


def test_a_head_of_classes_is_noted(tmp_path: Path) -> None:
    config = dict(load_model("llama-3.2-1b").config) | {"model_type": "llama"}
    for named, notes in (("LlamaForCausalLM", 0), ("LlamaForSequenceClassification", 1)):
        assert len(load_model(write(tmp_path, config | {"architectures": [named]})).notes) == notes


def test_swish_is_silu(tmp_path: Path) -> None:
    """Both names are ``nn.SiLU`` in transformers, and stacks have their kernels under one."""
    first, second = (load_model(write(tmp_path, {**LLAMA, "hidden_act": name})) for name in ("silu", "swish"))
    assert build_graph(first, 8) == build_graph(second, 8)


def test_functions_in_tables_of_their_own_are_known_ones(tmp_path: Path) -> None:
    t5 = {"model_type": "t5", "num_heads": 4, "num_layers": 2, "feed_forward_proj": "gated-geluu"}
    with pytest.raises(InputError, match=r"unknown feed_forward_proj in .*: 'geluu'; did you mean gelu"):
        load_model(write(tmp_path, t5))
