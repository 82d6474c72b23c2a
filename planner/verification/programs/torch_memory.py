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
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.pipelining.stage import _PipelineStageBase
from torch.distributed.tensor import _sharding_prop
from torch.nn.attention import bias
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import masking_utils

from planner.verification.programs.torch_models import NoModel, Task, build, load, mean_loss

Action = tuple[int, str, int]
"""Stage, F or B, micro-batch."""


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    try:
        found = measure(task)
    except NoModel as error:
        found = {"unsupported": str(error)}
    print(json.dumps(found))


def measure(task: Task) -> dict[str, Any]:
    """Peak of live tensors [bytes], by category, on the first rank of a part of the pipeline."""
    exported = load(task["exported"])
    world, (part, parts) = math.prod(exported.MESH_SHAPE), task["part"]
    dist.init_process_group("fake", rank=part * (world // parts), world_size=world, store=FakeStore())
    # Whole tensors of which DTensor asks only for their shapes are then of another mode, which is not tracked.
    _sharding_prop.detect_fake_mode = lambda *inputs: None
    # What transformers reads from the values of real tensors: sequences are not packed, nor is anything hidden.
    masking_utils.find_packed_sequence_indices = lambda positions: None
    if "cp" in exported.MESH_NAMES:
        masking_utils._ignore_causal_mask_sdpa = lambda *args, **kwargs: True
        # As on a GPU: a CPU would be given a mask of all tokens.
        bias.can_use_flash_attention = lambda params: True
    peak, attention = _peak(exported, task, [tuple(action) for action in task["order"]])
    dist.destroy_process_group()
    return {"version": torch.__version__, "peak_bytes": peak, "attention": attention}


def _peak(exported: Any, task: Task, order: list[Action]) -> tuple[dict[str, float], str]:
    """Of a rank that runs its stages in ``order``, and what transformers calls its attention."""
    mesh = exported.make_mesh("cpu")
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    stages = sorted({stage for stage, _, _ in order})
    with fake:
        # Each is built anew: tensors of a copy are of another mode, where views have memory of their own.
        models = {stage: build(task, exported.MODEL_DTYPE) for stage in stages}
        config = models[stages[0]].config
        parts = {stage: exported.StagePart(whole, stage, mesh["tp"]) for stage, whole in models.items()}
    for part in parts.values():
        exported.parallelise(part.model, mesh)  # its parameters are fake, but a mesh's ranks must be real
    modules = [part.model for part in parts.values()]
    root = (
        modules[0]
        if len(modules) == 1
        else fully_shard(torch.nn.Sequential(*modules), mesh=exported.data_ranks(mesh))
    )
    if not isinstance(root, FSDPModule):
        raise NoModel("memory is tracked where data-parallel ranks share states")
    pipelined = task["part"][1] > 1
    with fake:
        optimizer = torch.optim.AdamW([p for m in modules for p in m.parameters()], foreach=False)
        tokens = torch.zeros((exported.MICRO_BATCH, task["seq"]), dtype=torch.int64)
        tokens = exported.context_part(mesh, tokens)
        hidden = _hidden(exported, mesh, tokens, config.hidden_size)
        tracker = FSDPMemTracker(root, optimizer)
        tracker.track_inputs((tokens,))
        with tracker:
            for actions in ([action for action in order if action[2] == 0], order):
                for module in modules if pipelined else ():
                    _leave_gradients_whole(module)
                _run(exported, parts, actions, (tokens, hidden), tracker)
                for module in modules if pipelined else ():
                    _PipelineStageBase.perform_reduce_grad(SimpleNamespace(submod=module), 1)
                optimizer.step()
                if pipelined or exported.NUM_MICROBATCHES == 1:  # else they stay, as for the last of them
                    optimizer.zero_grad()
            peak = next(iter(tracker.get_tracker_snapshot("peak").values()))
    sizes = {getattr(kind, "value", str(kind)): size for kind, size in peak.items()}
    return sizes, config._attn_implementation


def _leave_gradients_whole(module: FSDPModule) -> None:
    """As torch's stages have it, until they reduce what all micro-batches make.

    Source: pytorch/pytorch ``torch/distributed/pipelining/stage.py`` (backward_maybe_with_nosync).
    """
    module.set_is_last_backward(False)
    module.set_reshard_after_backward(False)
    module.set_requires_gradient_sync(False)


def _hidden(exported: Any, mesh: Any, tokens: Any, size: int) -> Any:
    """What a stage hands to the next."""
    batch, length = tokens.shape
    length //= mesh["tp"].size() if exported.SPLIT_SEQUENCE else 1
    return torch.zeros((batch, length, size), dtype=exported.PARAM_DTYPE or exported.MODEL_DTYPE)


def _run(
    exported: Any, parts: dict[int, Any], actions: list[Action], given: tuple[Any, Any], tracker: Any
) -> None:
    """Forwards and backwards of micro-batches; what waits for its backward stays, as in torch's pipelines."""
    tokens, hidden = given
    held: dict[tuple[int, int], Any] = {}
    for stage, work, micro in actions:
        if work == "F":
            tracker.memory_tracking.pop(parts[stage].model, None)  # it wants to hear of a root once a step
            entry = torch.empty_like(hidden, requires_grad=True) if stage else tokens
            with exported.loss_context():
                result = parts[stage](entry)
                if stage == len(exported.STAGES) - 1:
                    result = mean_loss(result, tokens) / exported.NUM_MICROBATCHES
            held[stage, micro] = (entry, result)
        else:
            _, result = held.pop((stage, micro))
            with exported.loss_context():
                result.backward(None if result.dim() == 0 else torch.empty_like(result))
            del result


if __name__ == "__main__":
    main(sys.argv[1])
