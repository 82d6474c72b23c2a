"""Storages of a training step as they are made, resized and freed, each on its stream: what replaying.py replays."""

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import tracking
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, _sharding_prop
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from tracked_model import Model, parallelised, ranks_of
from tracked_optimizers import OPTIMIZERS


class Event(NamedTuple):
    """A storage comes, or goes."""

    storage: int
    size: int
    """Bytes; 0 where it goes."""
    stream: int


class Recorder(TorchDispatchMode):
    """Lists in ``events`` what comes and goes under the mode ``fake``."""

    def __init__(self, fake: Any) -> None:
        super().__init__()
        self.fake, self.plain = fake, torch.UntypedStorage.resize_
        self.events: list[Event] = []
        self.alive: Any = WeakIdKeyDictionary(ref_type=weakref.ref)

    def add(self, tensor: Any) -> None:
        """Record the storage of ``tensor``, if it is seen for the first time.

        Of another mode are tensors of which only the shapes are asked for.
        """
        if getattr(tensor, "fake_mode", self.fake) is self.fake:
            self._add(tensor.untyped_storage())

    def _add(self, storage: Any) -> None:
        if storage not in self.alive:
            self.alive[storage] = held = [0]
            self._comes(held, storage.nbytes())
            weakref.finalize(storage, self._goes, held)

    def _comes(self, held: list[int], size: int) -> None:
        """``held`` is the number of its event; 0 where it has no bytes."""
        if size:
            held[0] = len(self.events) + 1
            self.events.append(Event(held[0], size, id(torch.cpu.current_stream())))

    def _goes(self, held: list[int]) -> None:
        if held[0]:
            self.events.append(Event(held[0], 0, 0))
            held[0] = 0

    def _resized(self, storage: Any, size: int) -> Any:
        self._add(storage)
        result, held = self.plain(storage, size), self.alive[storage]
        self._goes(held)
        self._comes(held, size)
        return result

    def __enter__(self) -> Any:
        """FSDP2 frees whole weights by resizing their storages."""
        resized = self._resized
        torch.UntypedStorage.resize_ = lambda storage, size: resized(storage, size)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.UntypedStorage.resize_ = self.plain
        super().__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record what an operator makes."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        made = func(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.add, made)
        return made


def recorded(row: Mapping[str, Any]) -> Sequence[Event]:
    """Events of two steps of ``row``, those of weights first."""
    plan, sizes = row["parallel"], row["model"]
    _sharding_prop.detect_fake_mode = lambda *inputs: None
    dist.init_process_group("fake", rank=0, world_size=plan["dp"] * plan["tp"], store=FakeStore())
    mesh, fake = ranks_of(plan, "cpu"), FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        model = Model(sizes, plan["recompute"], saved_away=False)
        tokens = torch.zeros((plan["micro_batch"], sizes["seq"]), dtype=torch.int64)
    parallelised(model, plan, mesh)
    with fake, Recorder(fake) as recorder:
        for weight in model.parameters():
            recorder.add(weight.to_local() if isinstance(weight, DTensor) else weight)
        optimizers = OPTIMIZERS[plan["optim"]](model)
        for _ in range(2):
            tracking.step(model, optimizers, partial(tracking.loss_of, model, tokens), plan)
    dist.destroy_process_group()
    return list(recorder.events)
