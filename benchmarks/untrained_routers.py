"""Where the routers of a mixture with random weights send tokens: the share of the fullest rank, layer by layer.

python benchmarks/untrained_routers.py

A decoder as Qwen3's mixtures are built (norms before attention and experts, softmax over chosen experts), narrow, with
Megatron's initialisation: deviation 0.02, on what adds to the residual stream over the root of twice the layers. Words
have the frequencies of Zipf's law. Queries and keys have no rotary positions.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

TOKENS, WORDS, SEED = 1024, 50_000, 0
RANKS = (8, 16, 32)


class Shape(NamedTuple):
    """Sizes of the model."""

    layers: int = 12
    hidden: int = 512
    heads: int = 8
    experts: int = 128
    chosen: int = 8
    width: int = 96
    """Of an expert."""


def main() -> None:
    """Print one line for each layer, and the mean of all but the first."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        found = loads(Shape())
    for layer, row in enumerate(found):
        print(
            f"layer {layer}: "
            + ", ".join(f"{share:.2f} of {r} ranks" for share, r in zip(row, RANKS, strict=True))
        )
    later = torch.tensor(found[1:]).mean(0).tolist()
    print("all but the first: " + ", ".join(f"{share:.1f}" for share in later))


def loads(shape: Shape) -> list[list[float]]:
    """Copies of tokens of the fullest of so many `RANKS` over those of the mean, of every layer."""
    frequencies = 1 / torch.arange(1, WORDS + 1)
    words = torch.multinomial(frequencies, TOKENS, replacement=True)
    stream, found = _weights(WORDS, shape.hidden)[words], []
    for _ in range(shape.layers):
        stream = stream + _attention(_normed(stream), shape)
        added, chosen = _mixture(_normed(stream), shape)
        stream = stream + added
        copies = torch.bincount(chosen.flatten(), minlength=shape.experts).float()
        found.append([float(copies.view(ranks, -1).sum(1).max() / copies.sum() * ranks) for ranks in RANKS])
    return found


def _attention(inputs: Tensor, shape: Shape) -> Tensor:
    hidden, each = shape.hidden, shape.hidden // shape.heads
    parts = [
        (inputs @ _weights(hidden, hidden)).view(TOKENS, shape.heads, each).transpose(0, 1) for _ in range(3)
    ]
    queries, keys, values = _normed(parts[0]), _normed(parts[1]), parts[2]
    mixed = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
    return mixed.transpose(0, 1).reshape(TOKENS, hidden) @ _weights(hidden, hidden, shape.layers)


def _mixture(inputs: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """What experts add to the stream, and the experts of each token."""
    probabilities = torch.softmax(inputs @ _weights(shape.hidden, shape.experts), -1)
    weights, chosen = probabilities.topk(shape.chosen, -1)
    weights = weights / weights.sum(-1, keepdim=True)
    added = torch.zeros_like(inputs)
    for expert in range(shape.experts):
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (inputs[rows] @ _weights(shape.hidden, shape.width) for _ in range(2))
        result = (torch.nn.functional.silu(gate) * up) @ _weights(shape.width, shape.hidden, shape.layers)
        added.index_add_(0, rows, result * weights[rows, places, None])
    return added, chosen


def _normed(array: Tensor) -> Tensor:
    return array / array.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()


def _weights(rows: int, columns: int, layers: int | None = None) -> Tensor:
    """Random weights; those that add to the stream of a model of so many ``layers`` are smaller."""
    return torch.randn(rows, columns) * 0.02 / (math.sqrt(2 * layers) if layers else 1.0)


if __name__ == "__main__":
    main()
