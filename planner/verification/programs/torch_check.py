"""Steps of a small model under an exported FSDP2 script, on gloo processes, against one process.

    python -m planner.verification.programs.torch_check task.json

Prints, as JSON, the losses of both and how far their parameters are apart.
"""

import json
import math
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor

from planner.verification.programs.torch_models import NoModel, Task, build, load, mean_loss

LEARNING_RATE, STEPS, NEVER_CLIPPED = 0.1, 2, 1e6

BATCHED = ("dp_replicate", "dp_shard", "ep")
"""Axes of the mesh whose ranks have sequences of their own, outermost first."""

Named = dict[str, Any]


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    torch.set_num_threads(1)  # and so no threads that a fork would lose
    exported = load(task["exported"])
    try:
        build(task, exported.MODEL_DTYPE)
    except NoModel as error:
        print(json.dumps({"unsupported": str(error)}))
        return
    world = math.prod(exported.MESH_SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        arguments = (task, world, f"{folder}/store", str(result))
        mp.start_processes(_worker, arguments, nprocs=world, start_method="fork")
        print(result.read_text())


def _worker(rank: int, task: Task, world: int, store: str, result: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    exported = load(task["exported"])
    shape = (exported.GLOBAL_BATCH, task["seq"])
    tokens = torch.randint(task["vocab"], shape, generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1, 1)
    reference = build(task, exported.MODEL_DTYPE).eval()  # without dropout, so that all draw the same
    start = {name: p.detach().clone() for name, p in reference.named_parameters()}
    expected, norm = _train_alone(reference, tokens, labels)
    model = build(task, exported.MODEL_DTYPE).eval()
    losses, parameters, parallel_norm = _train(exported, model, tokens, labels)
    target = dict(reference.named_parameters())
    found = {
        "version": torch.__version__,
        "processes": world,
        "loss": expected,
        "parallel_loss": losses,
        "moved": max(float((p - start[name]).detach().abs().max()) for name, p in target.items()),
        "distance": _distance(parameters, target),
    }
    if parallel_norm is not None:
        found |= {"norm": norm, "parallel_norm": parallel_norm}
    if rank == 0:
        Path(result).write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _train_alone(model: Any, tokens: Any, labels: Any) -> tuple[list[float], float]:
    """Losses of the steps, and the norm of the last one's gradients."""
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE)
    losses, norm = [], 0.0
    for _ in range(STEPS):
        loss = mean_loss(model(tokens).logits, labels)
        loss.backward()
        losses.append(float(loss.detach()))
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norm


def _train(exported: Any, model: Any, tokens: Any, labels: Any) -> tuple[list[float], Named, float | None]:
    """Losses of the whole batch, this rank's parameters by their names, and the last norm where ranks have it all."""
    piped = len(exported.STAGES) > 1
    if piped:
        mesh = exported.make_mesh("cpu")
        schedule, parts = exported.pipeline(model, mesh, mean_loss)
        modules = [part.model for part in parts]
    else:
        mesh = exported.apply(model, "cpu")
        modules = [model]
    own, targets = _mine(exported, mesh, tokens), _mine(exported, mesh, labels)
    optimizer = torch.optim.SGD([p for m in modules for p in m.parameters()], LEARNING_RATE, foreach=False)
    losses, norm = [], None
    for _ in range(STEPS):
        if piped:
            losses.append(_piped_step(exported, schedule, mesh, own, targets))
        else:
            losses.append(_step(exported, model, own, targets))
            norm = float(exported.clip_gradients(model.parameters(), NEVER_CLIPPED))
        optimizer.step()
        optimizer.zero_grad()
    return losses, {_plain(n): p for m in modules for n, p in m.named_parameters()}, norm


def _step(exported: Any, model: Any, tokens: Any, labels: Any) -> float:
    total, count = torch.zeros(()), exported.NUM_MICROBATCHES
    for micro, target in zip(tokens.chunk(count), labels.chunk(count), strict=True):
        with exported.loss_context():
            loss = mean_loss(model(micro).logits, target) / count
            loss.backward()
        total += _whole(loss.detach())
    return _mean([total])


def _piped_step(exported: Any, schedule: Any, mesh: Any, tokens: Any, labels: Any) -> float:
    given, options = exported.feed(mesh, tokens, labels)
    with exported.loss_context():
        schedule.step(*given, **options)
    return _mean([_whole(loss.detach()) for loss in options.get("losses", ())])


def _mean(values: list[Any]) -> float:
    """Mean over micro-batches and ranks; those that have none (other stages) do not count."""
    sums = torch.tensor([float(sum(values)), float(len(values))], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def _mine(exported: Any, mesh: Any, tokens: Any) -> Any:
    """Tokens of this rank: its sequences, and of these what context parallelism deals out to it."""
    index, count = 0, 1
    for name, size, place in zip(
        exported.MESH_NAMES, exported.MESH_SHAPE, mesh.get_coordinate(), strict=True
    ):
        if name in BATCHED:
            index, count = index * size + place, count * size
    return exported.context_part(mesh, tokens.chunk(count)[index])


def _plain(name: str) -> str:
    return name.replace("_checkpoint_wrapped_module.", "")


def _whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _distance(parameters: Named, target: Named) -> float:
    """Largest over all ranks; every rank takes part in gathering what it holds, in one order."""
    found = _largest((_whole(p) - target[name]).detach().abs().max() for name, p in parameters.items())
    worst = torch.tensor(found)
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    return float(worst)


def _largest(values: Iterable[Any]) -> float:
    return max((float(value) for value in values), default=0.0)


if __name__ == "__main__":
    main(sys.argv[1])
