"""A module of PyTorch with numbers in it, and what it makes of them on one device."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from cluster_specs.errors import InputError
from planner.tracing.program import Program
from planner.tracing.reading.from_torch import Reading


def filled(module: Any, reading: Reading) -> tuple[Any, Reading]:
    """Copies with random numbers where tensors have none; what is not learned (a running variance) is positive."""
    memo: dict[int, Any] = {}
    for seed, tensor in enumerate(_tensors(module)):
        if tensor.is_meta:
            learned = isinstance(tensor, torch.nn.Parameter)
            made = numbers(tensor, seed, positive=not learned)
            memo[id(tensor)] = torch.nn.Parameter(made, tensor.requires_grad) if learned else made
    module = copy.deepcopy(module, memo)
    constants = {name: _constant(module, name, x) for name, x in reading.constants.items()}
    return module, reading._replace(constants={n: x for n, x in constants.items() if x is not None})


def _tensors(module: Any) -> list[Any]:
    """Parameters, buffers and other attributes."""
    plain = (x for part in module.modules() for x in vars(part).values() if isinstance(x, torch.Tensor))
    return [*module.parameters(), *module.buffers(), *plain]


def _constant(module: Any, path: str, tensor: Any) -> Any:
    """A tensor that the module has, or that is written in it; None where its numbers are not known."""
    owner, _, name = path.rpartition(".")
    try:
        return getattr(module.get_submodule(owner), name)
    except AttributeError:
        return None if tensor.is_meta or isinstance(tensor, FakeTensor) else tensor


def on_meta(module: Any) -> Any:
    """A copy without storage."""
    memo = {id(x): x.to("meta") for x in _tensors(module)}
    for x in module.parameters():
        memo[id(x)] = torch.nn.Parameter(x.to("meta"), x.requires_grad)
    return copy.deepcopy(module, memo)


def numbers(tensor: Any, seed: int, positive: bool = False) -> Any:
    """Random ones of its shape and type; indices are 0 or 1, which every table has."""
    rng = torch.Generator().manual_seed(seed)
    if not tensor.dtype.is_floating_point:
        return torch.randint(0, 2, tensor.shape, generator=rng).to(tensor.dtype)
    # Weights that make what passes through them no larger: numbers that explode show rounding, not layouts.
    scale = min(0.3, max(1, *tensor.shape) ** -0.5) if tensor.ndim > 1 else 0.3
    made = scale * torch.randn(tensor.shape, generator=rng)
    return (made.abs() if positive else made).to(tensor.dtype)


def given_numbers(inputs: Sequence[Any]) -> Any:
    """Inputs as they are, or random where they have no numbers."""
    places = iter(range(1000, 1000 + len(tree_leaves(inputs))))
    return tree_map(
        lambda x: numbers(x, next(places)) if isinstance(x, torch.Tensor) and x.is_meta else x, tuple(inputs)
    )


def alone(module: Any, inputs: Sequence[Any], states: Sequence[Any], reading: Reading) -> list[Any]:
    """The program's results as PyTorch itself computes them, by its own derivatives and optimizer."""
    count, parameters = reading.traced.gradients, dict(module.named_parameters())
    weights = [parameters[path] for path, _ in reading.traced.roles[:count]]
    try:
        made = [x for x in tree_leaves(module(*inputs)) if isinstance(x, torch.Tensor)]
        found = torch.autograd.grad(made[0], weights, allow_unused=True) if count else ()
    except Exception as error:  # whatever the module raises
        said = str(error).strip().partition("\n")[0]
        raise InputError(f"on one CPU the module itself fails: {type(error).__name__}: {said}") from error
    if not count:
        return [x.detach() for x in made]
    roles = [role for _, role in reading.traced.roles[:count]]
    gradients = [None if role == "frozen" else g for role, g in zip(roles, found, strict=True)]
    if reading.update is None:
        return [*gradients, made[0].detach()]
    reached = [(w.detach(), g) for w, g in zip(weights, gradients, strict=True) if g is not None]
    new = reading.update.run([w for w, _ in reached], [g for _, g in reached], states)
    return [*new, made[0].detach()]


@contextmanager
def noted_casts() -> Iterator[list[str]]:
    """Devices for which ``torch.autocast`` is entered meanwhile, but the CPU: there it casts nothing."""
    found: list[str] = []
    own = torch.autocast.__enter__

    def enter(region: Any) -> Any:
        found.extend([region.device] if region.device != "cpu" else [])
        return own(region)

    with patch.object(torch.autocast, "__enter__", enter):
        yield found


def titles(reading: Reading) -> list[str]:
    """What the program's results are called."""
    paths = [path for path, _ in reading.traced.roles[: reading.traced.gradients]]
    if not paths:
        return [f"output {k}" for k in range(len(reading.program.results))]
    if reading.update is None:
        return [*(f"gradient of {path}" for path in paths), "loss"]
    new = (*reading.traced.weights, *(name for name, _ in reading.update.states))
    return [*(f"new {name}" for name in new), "loss"]


def rounding(program: Program) -> float:
    """Of the coarsest type that a program computes in."""
    types = (getattr(torch, dtype, None) for dtype in {v.dtype for v in program.values})
    return max(
        (torch.finfo(t).eps for t in types if t is not None and t.is_floating_point and t.itemsize > 1),
        default=0.0,
    )


def nudged(tree: Any, rng: Any, share: float) -> Any:
    """The same, every number by a share of itself off, up or down by chance."""

    def moved(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.dtype.is_floating_point:
            return x
        sign = 2 * torch.randint(0, 2, x.shape, generator=rng) - 1
        return x * (1 + max(share, torch.finfo(x.dtype).eps) * sign).to(x.dtype)

    return tree_map(moved, tree)


def nudged_module(module: Any, rng: Any, share: float) -> Any:
    """A copy of which every parameter and buffer is so."""
    made = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in (*made.parameters(), *made.buffers()):
            tensor.copy_(nudged(tensor, rng, share))
    return made


def check_finite(names: Sequence[str], made: Sequence[Any]) -> None:
    """Refuse numbers that cannot be compared."""
    for name, tensor in zip(names, made, strict=True):
        if tensor is not None and tensor.dtype.is_floating_point and not tensor.isfinite().all():
            raise InputError(
                f"on one device, {name} has numbers that are not finite; shapes are filled with random numbers: give "
                "tensors that the module can take"
            )
