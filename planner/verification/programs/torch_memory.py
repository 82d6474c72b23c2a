"""Live memory of one rank in a full training step under an exported FSDP2 script: fake tensors, no devices.

    python -m planner.verification.programs.torch_memory task.json

Prints, as JSON, the peak of the second step (the first has no optimizer states yet), by category and in all.

The update runs parameter by parameter: under fake tensors torch takes grouped updates apart into copies that are
none on a device, so the temporaries of such updates are left out.

Source: torch.distributed._tools.fsdp2_mem_tracker, which counts tensors, not what the allocator adds.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

from planner.verification.programs.torch_models import NoModel, Task, build, load, mean_loss


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    try:
        found = measure(task)
    except NoModel as error:
        found = {"unsupported": str(error)}
    print(json.dumps(found))


def measure(task: Task) -> dict[str, Any]:
    """Peak of live tensors on rank 0 [bytes]."""
    exported = load(task["exported"])
    world = math.prod(exported.MESH_SHAPE)
    dist.init_process_group("fake", rank=0, world_size=world, store=FakeStore())
    mesh = exported.make_mesh("cpu")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = build(task, exported.MODEL_DTYPE)
    exported.parallelise(model, mesh)  # its parameters are fake, but a mesh's ranks must be real
    with fake:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        tokens = torch.zeros((exported.MICRO_BATCH, task["seq"]), dtype=torch.int64)
        labels = torch.zeros_like(tokens)
        tracker = FSDPMemTracker(model, optimizer)
        tracker.track_inputs((tokens, labels))
        with tracker:
            _step(exported, model, optimizer, tokens, labels)
            tracker.reset_mod_stats()
            _step(exported, model, optimizer, tokens, labels)
            peak = next(iter(tracker.get_tracker_snapshot("peak").values()))
    dist.destroy_process_group()
    return {
        "version": torch.__version__,
        "peak_bytes": {getattr(kind, "value", str(kind)): size for kind, size in peak.items()},
    }


def _step(exported: Any, model: Any, optimizer: Any, tokens: Any, labels: Any) -> None:
    """One micro-batch and an update. Where there are more, gradients stay, as they do for the last of them."""
    with exported.loss_context():
        (mean_loss(model(tokens).logits, labels) / exported.NUM_MICROBATCHES).backward()
    optimizer.step()
    if exported.NUM_MICROBATCHES == 1:
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
