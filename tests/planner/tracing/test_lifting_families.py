"""Models of `transformers` as models of plans: FLOPs are those that PyTorch counts, frozen weights have no gradient."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from cluster_specs.catalog import load_cluster  # noqa: E402
from planner import Program, from_torch, plan  # noqa: E402
from planner.evaluation.evaluator import Evaluator  # noqa: E402
from planner.flops import Counting  # noqa: E402
from planner.graph import Graph, count_parameters  # noqa: E402
from planner.operators import backward_flops, forward_flops  # noqa: E402
from planner.plans import Job, Parallelism  # noqa: E402
from planner.tracing.lifting.model import graph_of, model_of  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
BATCH = 4
SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
EAGER = {"attn_implementation": "eager"}
IMAGES = torch.zeros(BATCH, 3, 64, 64)
TOKENS = torch.arange(BATCH * 32).reshape(BATCH, 32) % 100
CLASSES = torch.arange(BATCH)
Case = tuple[Any, dict[str, Any], dict[str, Any]]
"""Module, its tensors by name, and other arguments."""


class Loss(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, case: Case) -> None:
        super().__init__()
        self.model, tensors, self.more = case
        self.names = list(tensors)

    def forward(self, *tensors: Any) -> Any:
        return self.model(**dict(zip(self.names, tensors, strict=True)), **self.more).loss


def segformer() -> Case:
    """Keys of patches of what queries are; one head at first."""
    config = transformers.SegformerConfig(
        num_labels=5, depths=[1, 1, 1, 1], hidden_sizes=[16, 32, 64, 96], num_attention_heads=[1, 2, 4, 6],
        decoder_hidden_size=32, **EAGER,
    )  # fmt: skip
    labels = torch.zeros(BATCH, 64, 64, dtype=torch.long)
    model = transformers.SegformerForSemanticSegmentation(config)
    return model, {"pixel_values": IMAGES, "labels": labels}, {}


def siglip() -> Case:
    """One query for all patches of an image."""
    text = {**SIZES, "vocab_size": 100, "max_position_embeddings": 32}
    image = {**SIZES, "image_size": 64, "patch_size": 16}
    config = transformers.SiglipConfig(text_config=text, vision_config=image, **EAGER)
    model = transformers.SiglipModel(config)
    return model, {"input_ids": TOKENS, "pixel_values": IMAGES}, {"return_loss": True}


def swin() -> Case:
    """Scores to which a table of relative positions is added."""
    config = transformers.SwinConfig(
        image_size=64, embed_dim=32, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10, **EAGER
    )
    model = transformers.SwinForImageClassification(config)
    return model, {"pixel_values": IMAGES, "labels": CLASSES}, {}


def llava() -> Case:
    """Results for all images at once, cut into those of each."""
    text = {"model_type": "llama", **SIZES, "vocab_size": 100, "num_key_value_heads": 2}
    image = {
        "model_type": "clip_vision_model",
        **SIZES,
        "hidden_size": 48,
        "image_size": 64,
        "patch_size": 16,
    }
    config = transformers.LlavaConfig(
        text_config=text, vision_config=image, image_token_index=7, vision_feature_layer=-1, **EAGER
    )
    tokens = torch.cat([torch.full((BATCH, 16), 7), torch.full((BATCH, 16), 3)], 1)
    model = transformers.LlavaForConditionalGeneration(config)
    return model, {"input_ids": tokens, "pixel_values": IMAGES, "labels": tokens}, {"use_cache": False}


def mamba2() -> Case:
    """Products of states that exponentials scale: no attention."""
    config = transformers.Mamba2Config(
        vocab_size=100, hidden_size=64, num_hidden_layers=3, state_size=24, num_heads=8, head_dim=16, n_groups=2,
        chunk_size=8,
    )  # fmt: skip
    return (
        transformers.Mamba2ForCausalLM(config),
        {"input_ids": TOKENS, "labels": TOKENS},
        {"use_cache": False},
    )


@cache
def traced(made: Callable[[], Case]) -> tuple[Loss, list[Any], Program]:
    case = made()
    module, tensors = Loss(case), list(case[1].values())
    return module, tensors, from_torch(module, *tensors)


def lifted(made: Callable[[], Case]) -> tuple[Loss, list[Any], Graph]:
    module, tensors, program = traced(made)
    return module, tensors, graph_of(program)


def counted(module: Loss, tensors: list[Any]) -> tuple[int, int]:
    """FLOPs of forward and backward by PyTorch."""
    with FlopCounterMode(display=False) as forward:
        loss = module(*tensors)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def ours(graph: Graph) -> tuple[float, float]:
    counting = Counting(causal=False, attention_kernel="plain")
    return BATCH * forward_flops(graph, 1, counting), BATCH * backward_flops(graph, 1, counting)


@pytest.mark.parametrize("made", [siglip, swin, llava])
def test_flops_are_those_that_pytorch_counts(made: Any) -> None:
    module, tensors, graph = lifted(made)
    assert ours(graph) == counted(module, tensors)


def test_segformer_is_a_model() -> None:
    """Of its backward pass PyTorch counts a dense convolution for every depthwise one."""
    module, tensors, graph = lifted(segformer)
    assert ours(graph)[0] == counted(module, tensors)[0]
    answer = plan(model_of(traced(segformer)[2]), "dgx-h100:1", global_batch=64, seq_len=1)
    assert answer.estimate.step_time_s > 0


def test_mamba_2_has_no_attention() -> None:
    """Its convolution over time makes three steps that are dropped, which PyTorch counts, too."""
    module, tensors, graph = lifted(mamba2)
    kinds = [op.kind for block in graph.blocks for op in block.ops]
    assert "attention" not in kinds
    assert kinds.count("product") == 5
    dropped = 3 * 2 * BATCH * (8 * 16 + 2 * 2 * 24) * 4 * (3 + 1)  # layers x 2 x channels x taps x steps
    assert ours(graph)[0] == pytest.approx(counted(module, tensors)[0], abs=dropped)


class Middle(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (torch.nn.Linear(32, 32, bias=False) for _ in range(3))
        self.middle.requires_grad_(False)

    def forward(self, x: Any, y: Any) -> Any:
        made = torch.relu(self.middle(torch.relu(self.first(x))))
        return torch.nn.functional.mse_loss(self.last(made), y)


def test_frozen_weights_have_no_gradient() -> None:
    module, data = Middle(), [torch.zeros(BATCH, 32), torch.zeros(BATCH, 32)]
    graph = graph_of(from_torch(module, *data))
    assert ours(graph) == counted(module, data)
    assert count_parameters(graph) == 2 * 32 * 32
    step = from_torch(module, *data, gradient=True)
    assert step.value["middle.weight"].role == "frozen"
    assert {t.target for t in step.ties} == {"first.weight", "last.weight"}
    module.requires_grad_(False)
    assert (
        from_torch(module, *data).value["middle.weight"].role == "parameter"
    )  # nothing is trained: it is run


def test_windows_beside_each_other_take_their_time() -> None:
    """Of a second stage of windows, which are dims of their own: twice as many of them take twice as long."""
    model = model_of(traced(swin)[2])
    graph = model.graph
    assert graph is not None
    block = graph.block[graph.layers[1].block]
    op = next(op for op in block.ops if op.kind == "attention")
    beside = next(d for d in block.tensor[op.inputs[0]].dims if d.startswith("pixels_"))

    def seconds(many: int) -> float:
        wide = graph.model_copy(update={"dims": {**graph.dims, beside: many}})
        job = Job(global_batch=64, seq_len=1)
        evaluator = Evaluator(model.model_copy(update={"graph": wide}), load_cluster("dgx-h100:1"), job)
        step = Parallelism(micro_batch=64)
        layout = evaluator.assignment(step, block.name, {})
        return evaluator.pricer(step).op(evaluator.graph.block[block.name], op, layout[op.name]).forward

    assert seconds(8192) == pytest.approx(2 * seconds(4096), rel=0.02)
