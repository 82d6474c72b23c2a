"""A device beside the host, of which nothing but shapes exists: so PyTorch's tracker tells what is offloaded.

Source: torch.utils.backend_registration of torch 2.13 (a device whose backend is written in Python).
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "imagined"


class Backend(_DummyBackendModule):
    """Streams and events of a device on which everything is done at once.

    Its backward runs in a thread of its own, in which nothing can be recomputed: a recomputation ends by an exception,
    which devices in Python do not survive.
    """

    Stream, Event, current_stream = torch.cpu.Stream, torch.Event, torch.cpu.current_stream

    def stream(self, stream: Any) -> Any:
        """No context is needed."""
        return nullcontext()

    def set_device(self, device: Any) -> None:
        """There is one."""


def registered() -> str:
    """Name of the device, known to PyTorch."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, Backend())
    return NAME
