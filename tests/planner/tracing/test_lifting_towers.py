"""FLOPs of towers of images as transformers has them, traced, against torch's counter.

With eager attention: of the kernel for CPUs behind ``sdpa`` the counter counts nothing.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner.flops import Counting  # noqa: E402
from planner.operators import backward_flops, forward_flops  # noqa: E402
from planner.tracing.lifting.model import graph_of  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

BATCH = 4
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGES = {**SIZES, "image_size": 28, "patch_size": 14}


def dinov2() -> tuple[Any, str, Any]:
    config = transformers.Dinov2Config(
        **IMAGES, mlp_ratio=2, use_mask_token=False, attn_implementation="eager"
    )
    labels = torch.zeros(BATCH, dtype=torch.long)
    return transformers.Dinov2ForImageClassification(config), "labels", labels


def clip() -> tuple[Any, str, Any]:
    text = {**SIZES, "intermediate_size": 96, "vocab_size": 100, "max_position_embeddings": 16}
    config = transformers.CLIPConfig(
        text_config=text,
        vision_config={**IMAGES, "intermediate_size": 96},
        projection_dim=32,
        attn_implementation="eager",
    )
    tokens = torch.arange(BATCH * 16).reshape(BATCH, 16)
    return transformers.CLIPModel(config), "input_ids", tokens


class Loss(torch.nn.Module):  # type: ignore[misc]
    """Of pixels and one tensor beside them."""

    def __init__(self, model: Any, beside: str) -> None:
        super().__init__()
        self.model, self.beside = model, beside
        self.more = {"return_loss": True} if beside == "input_ids" else {}

    def forward(self, pixels: Any, other: Any) -> Any:
        return self.model(pixel_values=pixels, **{self.beside: other}, **self.more).loss


@pytest.mark.parametrize("made", [dinov2, clip])
def test_flops_are_what_torch_counts(made: Any) -> None:
    model, beside, other = made()
    pixels = torch.zeros(BATCH, 3, 28, 28)
    module, eager = Loss(model, beside), Counting(causal=False, attention_kernel="plain")
    graph = graph_of(from_torch(module, pixels, other))
    with FlopCounterMode(display=False) as forward:
        loss = module(pixels, other)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert BATCH * forward_flops(graph, 1, eager) == forward.get_total_flops()
    assert BATCH * backward_flops(graph, 1, eager) == backward.get_total_flops()
