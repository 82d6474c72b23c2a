"""What saving and loading states takes beside them, by PyTorch's own tracker, kept as data.

    pip install torch==2.13.0
    python benchmarks/tracking_checkpoints.py    # write tests/published/torch_checkpoints.jsonl again

The models of tracking.py under FSDP2, with states, on a device that is imagined (tracked_device.py) beside the host, on
one process that takes itself for rank 0 of many. Each call of ``torch.distributed.checkpoint.state_dict`` is tracked by
itself; files are not written.

Source: torch.distributed._tools.mem_tracker of torch 2.13.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from own_cases import measure_cases
from tracking import row_of as tracked_row

CASES: Mapping[str, Mapping[str, Any]] = {
    "8b-6/dp8": {},
    "8b-6/dp8-ends": {"wrap": "titan"},
    "1b-8/dp2x4": {"shard": 4, "replicate": 2},
    "70b-3/dp64": {"shard": 64},
    "7b-6/dp16-bf16": {"shard": 16, "master_dtype": "bfloat16"},
    "7b-6/dp8-momentum": {"optim": "sgd_momentum"},
    "4b-4/dp8-tied": {},
    "1b-8/dp8-fp32": {"precision": "fp32", "param_dtype": "float32"},
}


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    row = tracked_row(name, {name: {"seq": 512, **CASES[name]}})
    return {
        **row,
        "id": f"torch-checkpoints/{name}",
        "source": "benchmarks/tracking_checkpoints.py (MemTracker of PyTorch, fake tensors)",
    }


def measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Way of saving or loading -> GiB on the device and on the rank's host beside what is there between steps."""
    import torch
    import torch.distributed as dist
    import tracked_device
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker
    from torch.distributed.tensor import _sharding_prop
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from tracked_model import Model, parallelised, ranks_of

    # Whole tensors of which DTensor asks only for their shapes are then of another mode, which is not tracked.
    _sharding_prop.detect_fake_mode = lambda *inputs: None
    plan = row["parallel"]
    device, fake = tracked_device.registered(), FakeTensorMode(allow_non_fake_inputs=True)
    dist.init_process_group("fake", rank=0, world_size=plan["dp"], store=FakeStore())
    mesh = ranks_of(plan, device)
    with fake, torch.device(device):
        torch.set_default_dtype(getattr(torch, plan["master_dtype"]))
        model = Model(row["model"], "none", False)
        torch.set_default_dtype(torch.float32)
    with fake:
        parallelised(model, plan, mesh)
        optimizer = OPTIMIZERS[plan["optim"]](model.parameters())
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            found = {
                name: {place: size / 2**30 for place, size in sizes.items()}
                for name, sizes in _ways(model, optimizer, tracker, device)
            }
    dist.destroy_process_group()
    return found


def _adamw(parameters: Any) -> Any:
    import torch

    return torch.optim.AdamW(parameters, fused=False, foreach=False)


def _sgd(parameters: Any) -> Any:
    import torch

    return torch.optim.SGD(parameters, momentum=0.9)


OPTIMIZERS: Mapping[str, Callable[[Any], Any]] = {"adamw_fused": _adamw, "sgd_momentum": _sgd}
"""Name -> the optimizer as it runs where there is no fused kernel; its own temporaries are not what is asked for."""


def _ways(model: Any, optimizer: Any, tracker: Any, device: str) -> Iterator[tuple[str, Mapping[str, int]]]:
    from torch.distributed.checkpoint import state_dict as states

    held: dict[str, Any] = {}

    def during(call: Callable[[], Any]) -> Mapping[str, int]:
        tracker._peak_mem.clear()  # it has no other way to forget what was before
        tracker._peak_mem_snap.clear()
        before = _sizes(tracker, "current")
        held["states"] = call()
        peak = _sizes(tracker, "peak")
        return {place: peak.get(place, 0) - before.get(place, 0) for place in (device, "cpu")}

    def got(**how: bool) -> Callable[[], Any]:
        return lambda: states.get_state_dict(model, optimizer, options=states.StateDictOptions(**how))

    def given(**how: bool) -> Callable[[], Any]:
        options = states.StateDictOptions(full_state_dict=True, **how)
        whole = held["states"]
        return lambda: (
            states.set_model_state_dict(model, dict(whole[0]), options=options),
            states.set_optimizer_state_dict(model, optimizer, dict(whole[1]), options=options),
        )

    states._init_optim_state(optimizer)
    yield "copied to the host", during(got(cpu_offload=True))
    held.clear()
    yield "gathered by the first rank", during(got(full_state_dict=True, cpu_offload=True))
    whole = held["states"]
    yield "dealt out by every rank", during(given())
    held["states"] = whole
    with _lone_broadcasts(device):
        yield "spread by the first rank", during(given(broadcast_from_rank0=True))


def _sizes(tracker: Any, when: str) -> dict[str, int]:
    return {device.type: int(each["Total"]) for device, each in tracker.get_tracker_snapshot(when).items()}


@contextmanager
def _lone_broadcasts(device: str) -> Iterator[None]:
    """The first rank sends to nobody, over a group that knows the device that is imagined; offsets are real numbers."""
    from unittest.mock import patch

    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.distributed import _state_dict_utils as used
    from torch.distributed import distributed_c10d as c10d

    group, offsets = c10d._get_default_group(), used.compute_local_shape_and_global_offset

    class Group:
        _device_types = (torch.device(device),)

        def __getattr__(self, name: str) -> Any:
            return getattr(group, name)

    def nothing(*given: Any, **options: Any) -> None:
        """Where a broadcast would be."""

    with (
        patch.object(c10d, "_get_default_group", Group),
        patch.object(used.dist, "broadcast", nothing),
        patch.object(used.dist, "broadcast_object_list", nothing),
        patch.object(used, "compute_local_shape_and_global_offset", unset_fake_temporarily()(offsets)),
    ):
        yield


if __name__ == "__main__":
    measure_cases(
        "torch_checkpoints.jsonl", CASES, row_of, measured, sys.argv[1] if len(sys.argv) > 1 else ""
    )
