"""A traced program as blocks: the same model as the one that its configuration makes."""

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest

from planner import Program, build_graph, load_model, plan
from planner.errors import InputError, Unsupported
from planner.graph import Graph, Run, count_parameters
from planner.models.dropout import with_dropout
from planner.operators import forward_flops
from planner.tracing.lifting.model import graph_of, model_of
from planner.tracing.program import Operation, Value

LLAMA = Path(__file__).parents[2] / "data" / "program_llama.json"
"""Of 8 billion parameters, a scan over its layers in plain JAX: `jax_models.llama`, traced."""

has_jax = importlib.util.find_spec("jax") is not None
has_transformers = importlib.util.find_spec("transformers") is not None
needs_jax = pytest.mark.skipif(not has_jax, reason="jax is not installed")
needs_transformers = pytest.mark.skipif(not has_transformers, reason="transformers is not installed")

DEGREES = (
    {"data": 8, "tensor": 1, "pipeline": 1},
    {"data": 2, "tensor": 4, "pipeline": 1},
    {"data": 2, "tensor": 2, "pipeline": 2},
    {"data": 4, "tensor": 1, "context": 2, "pipeline": 1},
)


@pytest.fixture(scope="module")
def llama() -> Graph:
    return graph_of(Program.model_validate_json(LLAMA.read_text()))


def test_a_traced_llama_is_the_shipped_one(llama: Graph) -> None:
    assert count_parameters(llama) == load_model("llama-3-8b").parameters
    assert llama.layers == (Run(block="layer", count=32),)
    assert llama.follows == {"kv_heads": "heads"}
    sizes = {"heads": 32, "kv_heads": 8, "head_dim": 128, "hidden": 4096, "ffn": 14336, "vocab": 128256}
    assert {name: llama.dims[name] for name in sizes} == sizes
    shipped = build_graph(load_model("llama-3-8b"), 4096)
    assert forward_flops(llama, 1) == pytest.approx(forward_flops(shipped, 1), rel=0.001)


@pytest.mark.parametrize("degrees", DEGREES, ids=str)
def test_its_plans_cost_what_those_of_the_configuration_do(llama: Graph, degrees: dict[str, int]) -> None:
    job = {"global_batch": 64, "seq_len": 4096, "micro_batch": 1, "recompute": "none", "zero_stage": 2}
    traced = model_of(Program.model_validate_json(LLAMA.read_text()))
    ours, theirs = (
        plan(model, "dgx-h100:1", top=1, **job, **degrees).estimate for model in (traced, "llama-3-8b")
    )
    assert ours is not None
    assert theirs is not None
    assert ours.step_time_s == pytest.approx(theirs.step_time_s, rel=0.02)
    assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=0.02)


def test_a_program_file_is_a_model() -> None:
    model = load_model(LLAMA)
    assert (model.name, model.family, model.source) == ("llama", "graph", str(LLAMA))
    assert model.graph == load_model(Program.model_validate_json(LLAMA.read_text())).graph


def traced(name: str, gradient: bool = False, **sizes: int) -> Program:
    import jax_layers
    import jax_models

    from planner import from_jax

    case = jax_models.MODELS[name](jax_layers.Sizes(**sizes))
    return from_jax(case.step if gradient else case.loss, *case.arguments, name=name)


@pytest.mark.jax
@needs_jax
@pytest.mark.parametrize("name", ["mlp", "gpt", "llama", "vit"])
def test_models_keep_their_parameters(name: str) -> None:
    program = traced(name, layers=4)
    graph = graph_of(program)
    shapes = [v.shape for v in program.values if v.role == "parameter"]
    assert count_parameters(graph) == sum(map(math.prod, shapes))
    assert graph.dims[graph.token_dim] == (1 if name == "mlp" else 16)
    assert graph.num_layers == 4
    assert len(graph.layers) <= 2  # the first of the MLP reads the data
    assert graph.layers[-1].count >= 3


@pytest.mark.jax
@needs_jax
def test_tied_embeddings_and_learned_positions() -> None:
    graph = graph_of(traced("gpt", layers=2))
    assert graph.tied == (("first.params_embed", "last.params_embed"),)
    assert graph.block["first"].tensor["params_positions"].dims == ("positions", "hidden")


@pytest.mark.jax
@needs_jax
def test_a_backward_pass_is_refused() -> None:
    message = "holds its backward pass, which a plan derives itself"
    with pytest.raises(Unsupported, match=message) as refusal:
        graph_of(traced("gpt", True))
    assert "meshwright shard" in str(refusal.value)


def convolved(layers: int, side: int = 32, width: int = 64) -> Program:
    """Residual blocks of two convolutions each, in a scan."""
    import jax

    from planner import from_jax

    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def block(x: Any, p: Any) -> Any:
        return x + convolve(jax.nn.relu(convolve(x, p["a"])), p["b"]), None

    def loss(params: Any, images: Any, labels: Any) -> Any:
        x, _ = jax.lax.scan(block, convolve(images, params["stem"]), params["layers"])
        logs = jax.nn.log_softmax(x.mean((1, 2)) @ params["head"])
        return -jax.numpy.take_along_axis(logs, labels[:, None], 1).mean()

    def array(*shape: int, dtype: str = "float32") -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    params = {
        "stem": array(3, 3, 3, width),
        "layers": {name: array(layers, 3, 3, width, width) for name in ("a", "b")},
        "head": array(width, 1000),
    }
    return from_jax(loss, params, array(8, side, side, 3), array(8, dtype="int32"), name="convolved")


@pytest.mark.jax
@needs_jax
def test_convolutions_are_operators_of_blocks() -> None:
    """2 FLOPs per pixel, tap, channel in and channel out; pixels are no sequence that a job lengthens."""
    model = model_of(convolved(4))
    graph = model.graph
    assert graph is not None
    assert graph.layers == (Run(block="layer", count=4),)
    assert [op.kind for op in graph.block["layer"].ops] == ["conv", "elementwise", "conv", "add"]
    filters = 9 * (3 * 64 + 4 * 2 * 64 * 64)
    assert model.parameters == filters + 64 * 1000
    assert forward_flops(graph, 1) == 2 * 32 * 32 * filters + 2 * 64 * 1000
    assert (graph.dims["seq"], graph.dims["pixels"]) == (1, 32 * 32)
    found = plan(model, "dgx-h100:1", global_batch=512, seq_len=1, top=1, data=4, pipeline=2)
    assert found.estimate is not None
    assert found.estimate.step_time_s > 3 * 512 * forward_flops(graph, 1) / (8 * 989.4e12)


@pytest.mark.jax
@needs_jax
def test_images_that_shrink_and_grow_are_a_chain_of_unlike_blocks() -> None:
    """A U-Net: what goes around is handed on from block to block; at half the side a quarter of the pixels."""
    program = traced("unet")
    graph = graph_of(program)
    assert count_parameters(graph) == sum(math.prod(v.shape) for v in program.values if v.role == "parameter")
    whole = 3 * 32 + 32 * 32 + 64 * 32 + 32 * 3
    half = 32 * 32 + 64 * 32
    assert forward_flops(graph, 1) == 2 * 9 * (16 * 16 * whole + 8 * 8 * half)
    assert max(len(graph.block[run.block].inputs) for run in graph.layers) > 1


T5_SMALL = {"layers": 6, "width": 512, "heads": 8, "kv_heads": 8, "ffn": 2048, "vocab": 32128, "length": 512}


@pytest.mark.jax
@needs_jax
@pytest.mark.parametrize("scanned", [False, True])
def test_an_encoder_and_a_decoder_are_two_stacks(scanned: bool) -> None:
    """The shipped model's, but for tables of relative positions (32 each for 8 heads) and the norms of both ends."""
    program = t5_in_scans() if scanned else traced("t5", batch=4, **T5_SMALL)
    model, shipped = model_of(program), load_model("t5-small")
    graph = model.graph
    assert graph is not None
    assert [run.count for run in graph.layers] == [6, 1, 6]
    assert model.parameters == shipped.parameters - 2 * 32 * 8 - 2 * 512
    assert forward_flops(graph, 1) == pytest.approx(forward_flops(build_graph(shipped, 512), 1), rel=1e-6)
    encoder, bridge, decoder = (graph.block[run.block] for run in graph.layers)
    assert len(encoder.inputs) == 1
    assert bridge.ops[0].kind == "embedding"
    assert decoder.outputs[1] == decoder.inputs[1]  # what the encoder made goes through
    _, cross = (op for op in decoder.ops if op.kind == "attention")
    assert cross.attributes["kv_dim"] == "encoder_seq"
    assert [decoder.tensor[n].dims[1] for n in cross.inputs] == ["seq", "encoder_seq", "encoder_seq"]
    assert {second.split(".")[0] for _, second in graph.tied} == {bridge.name, "last"}


@pytest.mark.jax
@needs_jax
@pytest.mark.parametrize("degrees", [*DEGREES[:2], {"data": 2, "tensor": 2, "pipeline": 2}], ids=str)
def test_plans_of_two_stacks_cost_what_those_of_the_configuration_do(degrees: dict[str, int]) -> None:
    job = {"global_batch": 64, "seq_len": 512, "micro_batch": 2, "recompute": "none", "zero_stage": 1}
    models = model_of(traced("t5", batch=4, **T5_SMALL)), with_dropout(load_model("t5-small"), 0.0)
    ours, theirs = (plan(m, "dgx-h100:1", top=1, **job, **degrees).estimate for m in models)
    assert ours is not None
    assert theirs is not None
    assert ours.step_time_s == pytest.approx(theirs.step_time_s, rel=0.02)
    assert ours.memory_bytes == pytest.approx(theirs.memory_bytes, rel=0.02)


def t5_in_scans() -> Program:
    """The same model with each stack in a loop of its own."""
    import jax
    import jax_layers as layers

    from planner import from_jax

    size = layers.Sizes(batch=4, **T5_SMALL)

    def attend(p: Any, x: Any, **options: Any) -> Any:
        return layers.attention(p, x, size, **options)

    def encode(x: Any, p: Any) -> Any:
        return layers.mlp_block(p["mlp"], attend(p["attention"], x, causal=False)), None

    def loss(params: Any, source: Any, tokens: Any, labels: Any) -> Any:
        memory, _ = jax.lax.scan(encode, params["embed"][source], params["encoder"])

        def decode(x: Any, p: Any) -> Any:
            x = attend(p["cross"], attend(p["attention"], x), causal=False, memory=memory)
            return layers.mlp_block(p["mlp"], x), None

        x, _ = jax.lax.scan(decode, params["embed"][tokens], params["decoder"])
        return layers.cross_entropy(x @ params["embed"].T, labels)

    encoder = {"attention": layers.attention_weights(size), "mlp": layers.mlp_weights(size)}
    decoder = {**encoder, "cross": layers.attention_weights(size)}
    params = {
        "embed": layers.f(size, size.vocab, size.width),
        "encoder": layers.stacked(size.layers, encoder),
        "decoder": layers.stacked(size.layers, decoder),
    }
    return from_jax(loss, params, *(layers.indices(size.batch, size.length),) * 3, name="t5 in scans")


def test_a_program_without_layers_is_one() -> None:
    program = Program(
        name="one",
        values=(
            Value(name="x", shape=(4, 8), dtype="float32", role="input", path="x"),
            Value(name="w", shape=(8, 8), dtype="float32", role="parameter", path="w"),
            Value(name="y", shape=(4, 8), dtype="float32"),
        ),
        operations=(
            Operation(
                name="y",
                kind="product",
                primitive="dot",
                inputs=("x", "w"),
                outputs=("y",),
                sizes=(4, 8, 8),
                reads=(((0,), (1,)), ((1,), (2,))),
                writes=(((0,), (2,)),),
            ),
        ),
        inputs=("x", "w"),
        outputs=("y",),
    )
    graph = graph_of(program)
    assert graph.layers == (Run(block="layer", count=1),)
    assert (graph.first, graph.last, count_parameters(graph)) == (None, None, 64)
    assert forward_flops(graph, 4) == 2 * 4 * 8 * 8


def test_elsewhere_a_program_file_says_what_to_do() -> None:
    from planner.models.catalog import load_model as configured

    with pytest.raises(InputError, match="is a traced program, not a model"):
        configured(LLAMA)


def loss_of(model: Any) -> Any:
    import torch

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Any, labels: Any) -> Any:
            logits = self.model(input_ids=tokens, use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    return Loss().eval()


@pytest.mark.torch
@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_modules_of_transformers(name: str) -> None:
    import torch
    import transformers

    from planner import from_torch

    with torch.device("meta"):
        tokens, labels = (torch.zeros((2, 64), dtype=torch.int64) for _ in range(2))
        model: Any
        if name == "llama":
            config = transformers.LlamaConfig(num_hidden_layers=3, num_key_value_heads=8)
            model = transformers.LlamaForCausalLM(config)
        else:
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3))
    graph = graph_of(from_torch(loss_of(model), tokens, labels))
    assert count_parameters(graph) == sum(p.numel() for p in model.parameters())
    assert graph.layers == (Run(block="layer", count=3),)
    assert graph.dims["heads"] == model.config.num_attention_heads
    assert bool(graph.tied) is (name == "gpt2")
    attention = next(op for op in graph.block["layer"].ops if op.kind == "attention")
    assert attention.attributes["causal"] is True
    layer = graph.block["layer"]
    projection = next(op for op in layer.ops if op.kind == "matmul")
    assert [layer.tensor[n].dims[-1] for n in projection.outputs] == ["head_dim"] * 3


@pytest.mark.torch
@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Mixtral", "Qwen3Moe", "GptOss", "DeepseekV3"])
def test_mixtures_of_transformers(name: str) -> None:
    """With gates and what they gate as one product, biases of each expert, groups of experts, a dense first layer."""
    import torch
    import transformers

    from planner import from_torch

    layers = 3 if name == "DeepseekV3" else 2
    sizes = {"num_hidden_layers": layers, "hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    more = {
        "Qwen3Moe": {"num_experts": 8, "moe_intermediate_size": 128},
        "DeepseekV3": {"n_routed_experts": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1},
        "GptOss": {"num_local_experts": 8},
    }
    config = getattr(transformers, f"{name}Config")(**sizes, **heads, **more.get(name, {}))
    with torch.device("meta"):
        tokens, labels = (torch.zeros((4, 64), dtype=torch.int64) for _ in range(2))
        model = getattr(transformers, f"{name}ForCausalLM")(config)
    graph = graph_of(from_torch(loss_of(model), tokens, labels))
    assert count_parameters(graph) == sum(p.numel() for p in model.parameters())
    assert [run.count for run in graph.layers] == ([1, 2] if name == "DeepseekV3" else [2])
    block = graph.block[graph.layers[-1].block]
    (sent,) = (block.tensor[op.outputs[0]] for op in block.ops if op.kind == "dispatch")
    assert (graph.dims["experts"], sent.scale) == (8, config.num_experts_per_tok / 8)


@pytest.mark.torch
@needs_transformers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["t5", "bart", "bert"])
def test_encoders_of_transformers(name: str) -> None:
    """T5 has its table of positions in the first layers only; BERT's head transforms before its tied product."""
    import torch
    import transformers

    from planner import from_torch

    class Loss(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, source: Any, tokens: Any, labels: Any) -> Any:
            given = {} if name == "bert" else {"decoder_input_ids": tokens, "use_cache": False}
            logits = self.model(input_ids=source, **given).logits
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    models = {
        "t5": lambda: transformers.T5ForConditionalGeneration(transformers.T5Config(num_layers=3)),
        "bart": lambda: transformers.BartForConditionalGeneration(
            transformers.BartConfig(encoder_layers=2, decoder_layers=2)
        ),
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(num_hidden_layers=2)),
    }
    with torch.device("meta"):
        source, tokens, labels = (torch.zeros((2, 64), dtype=torch.int64) for _ in range(3))
        model = models[name]()
    graph = graph_of(from_torch(Loss(model).eval(), source, tokens, labels))
    assert count_parameters(graph) == sum(p.numel() for p in model.parameters())
    counts = {"t5": [1, 2, 1, 1, 2], "bart": [2, 1, 2], "bert": [2]}
    assert [run.count for run in graph.layers] == counts[name]
    assert graph.tied
    causal = [op.attributes["causal"] for b in graph.blocks for op in b.ops if op.kind == "attention"]
    assert any(causal) == (name != "bert")  # decoders look back only, encoders both ways
    assert not all(causal)
