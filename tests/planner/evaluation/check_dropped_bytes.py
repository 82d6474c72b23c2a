"""Prints bytes that a layer keeps for its backward with dropout beyond those without, of Megatron Core or PyTorch.

Run in a process of its own by test_dropped.py:

    python check_dropped_bytes.py megatron|own|compiled

What is dropped has masks as on a GPU, where PyTorch's own on a CPU has the type of what it drops (pytorch/pytorch
``aten/src/ATen/native/Dropout.cpp``).
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

SEQ, BATCH, HIDDEN, HEADS = 64, 2, 32, 4


def drop_as_on_gpus() -> None:
    """With a mask of a byte an element, and nothing of a share of nothing."""
    functional.dropout = lambda x, p=0.5, training=True, inplace=False: (
        torch.native_dropout(x, p, training)[0] if p and training else x
    )


def kept(layer: nn.Module, run: Callable[[], Any]) -> int:
    """Bytes of the arrays that ``run`` saves for its backward, but for parameters of ``layer``."""
    own = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    found: dict[int, torch.Tensor] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        found[saved.untyped_storage().data_ptr()] = saved
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        run()
    return sum(saved.untyped_storage().nbytes() for place, saved in found.items() if place not in own)


class Block(nn.Module):
    """A layer of GPT as one writes it: plain attention, softmax in fp32, a feed-forward layer four times as wide."""

    def __init__(self, share: float, of_scores: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)
        self.of_scores, self.of_sums = nn.Dropout(of_scores), nn.Dropout(share)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shape = (BATCH, SEQ, HEADS, HIDDEN // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.first(x)).split(HIDDEN, -1))
        scores = self.of_scores(torch.softmax(q @ k.transpose(-1, -2), -1, torch.float32).to(x.dtype))
        x = x + self.of_sums(self.out((scores @ v).transpose(1, 2).reshape(BATCH, SEQ, HIDDEN)))
        return x + self.of_sums(self.down(functional.gelu(self.up(self.second(x)))))


def own(share: float) -> int:
    """Of `Block` in 16 bits."""
    layer = Block(share, share).bfloat16()
    x = torch.randn(BATCH, SEQ, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    return kept(layer, lambda: layer(x))


def compiled(share: float) -> int:
    """Of its feed-forward half as a compiler divides it into forward and backward, in 16 bits."""
    half = nn.Sequential(
        nn.LayerNorm(HIDDEN),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.Dropout(share),
    ).bfloat16()
    run = torch.compile(half, backend="aot_eager_decomp_partition")
    x = torch.randn(BATCH, SEQ, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    return kept(half, lambda: run(x))


class HostBuffers:
    """Megatron's buffers, which are on a GPU else."""

    def get_tensor(
        self, shape: Any, dtype: torch.dtype, name: str, mem_alloc_context: Any = None
    ) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)


def of_megatron(share: float, *, fused: bool = True) -> int:
    """Of a layer of Megatron Core with its own attention, in 16 bits."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import TransformerLayer
    from torch.distributed import HashStore, init_process_group, is_initialized

    if not is_initialized():
        init_process_group("gloo", rank=0, world_size=1, store=HashStore())
        parallel_state.initialize_model_parallel()
        parallel_state._GLOBAL_MEMORY_BUFFER = HostBuffers()
        states = random.CudaRNGStatesTracker()
        states.fork = lambda *_: torch.enable_grad()
        random._CUDA_RNG_STATE_TRACKER, random._CUDA_RNG_STATE_TRACKER_INITIALIZED = states, True
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=HEADS, use_cpu_initialization=True, bf16=True,
        params_dtype=torch.bfloat16, hidden_dropout=share, attention_dropout=share, bias_dropout_fusion=fused,
        masked_softmax_fusion=False, attention_softmax_in_fp32=False, gradient_accumulation_fusion=False,
        persist_layer_norm=False,
    )  # fmt: skip
    layer = TransformerLayer(config, get_gpt_layer_local_spec().submodules).bfloat16()
    x = torch.randn(SEQ, BATCH, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    hidden = torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool).triu(1)
    return kept(layer, lambda: layer(hidden_states=x, attention_mask=hidden))


KINDS: dict[str, Callable[[float], int]] = {
    "own": own,
    "compiled": compiled,
    "megatron": of_megatron,
    "megatron-unfused": lambda share: of_megatron(share, fused=False),
}


if __name__ == "__main__":
    drop_as_on_gpus()
    of_kind = KINDS[sys.argv[1]]
    print(of_kind(0.1) - of_kind(0.0))
