"""Prints what Inductor's code for a loss over words that tensor ranks share allocates, in bytes per token and word.

Run in a process of its own by test_compiled_loss.py.
"""

import json
import re

import torch
from torch import distributed
from torch._inductor.utils import run_and_get_code
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

TOKENS, WORDS, RANKS = 64, 250, 4
SIZES = {"bfloat16": 2, "float32": 4}


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """In fp32, as trainers take it of logits in 16 bits."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))


def main() -> None:
    """Arrays as large as the logits that the forward, and the backward, makes."""
    distributed.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    local = torch.randn(1, TOKENS, WORDS, dtype=torch.bfloat16)
    logits = DTensor.from_local(local, mesh, [Shard(-1)]).requires_grad_()
    labels = torch.randint(0, RANKS * WORDS, (1, TOKENS))
    compiled = torch.compile(cross_entropy)

    def step() -> None:
        compiled(logits, labels).backward()

    with loss_parallel():
        _, sources = run_and_get_code(step)
    pattern = rf"empty_strided_cpu\(\({TOKENS}, {WORDS}\), \(\d+, 1\), torch\.(\w+)\)"
    print(json.dumps([[SIZES[dtype] for dtype in re.findall(pattern, source)] for source in sources]))


if __name__ == "__main__":
    main()
