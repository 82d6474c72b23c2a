"""Two steps of training under a plan on gloo processes, beside one process: prints how far parameters are apart.

python check_training.py sharded.json NAME
"""

import json
import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh

sys.path.insert(0, str(Path(__file__).parent))
import torch_programs  # noqa: E402

from planner.tracing.applying.dtensor.apply import apply_layouts  # noqa: E402
from planner.tracing.sharded import ShardedProgram  # noqa: E402

STEPS, RATE = 2, 0.5


def work(rank, sharded, store, build):
    """One device."""
    axes = sharded.mesh
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=math.prod(axes.values())
    )
    alone, *inputs = build()
    optimizer = torch.optim.SGD(alone.parameters(), RATE)
    losses = []
    for _ in range(STEPS):
        loss = alone(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    module, *_ = build()
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    step = apply_layouts(module, sharded, mesh, *inputs, gradient=True)
    optimizer = torch.optim.SGD(module.parameters(), RATE)
    found = []
    for _ in range(STEPS):
        found.append(step(*inputs).item())
        optimizer.step()
        optimizer.zero_grad()
    pairs = zip(alone.parameters(), module.parameters(), strict=True)
    apart = max(float((a - b.full_tensor()).abs().max()) for a, b in pairs)
    if rank == 0:
        split = sum(any(p.is_shard() for p in b.placements) for b in module.parameters())
        print(json.dumps({"losses": losses, "found": found, "apart": apart, "split": split}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    plan = Path(sys.argv[1])
    planned = ShardedProgram.model_validate_json(plan.read_text())
    count = math.prod(planned.mesh.values())
    given = planned, f"{plan}.store", getattr(torch_programs, sys.argv[2])
    mp.start_processes(work, given, nprocs=count, start_method="fork")
