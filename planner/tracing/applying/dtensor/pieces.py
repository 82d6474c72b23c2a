"""Operators of PyTorch as a program has them: what it takes apart runs part by part, a product on what devices have.

A piece runs as ``run(title, function, operands, alone)``: its operator in the program, what computes it, the arrays
that the program says it reads, and whether devices do it alone (`Alone`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from planner.tracing.applying.dtensor.graphs import title_of

Alone = Literal["yes", "perhaps", "no"]
"""Whether each device does its part of an operator by itself, of what it has: ``perhaps`` where its loops say so."""

aten = torch.ops.aten


class Pieces:
    """Runs the operators of `KINDS`."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.run, self.shapes = runner, runner.run, runner.shapes_here
        self.random: dict[str, Tensor] = {}
        """State of a device's random numbers before an attention with dropout, by its name."""

    def affine(self, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
        """``beta bias + alpha (a b)``."""
        bias, left, right = given
        made = self.run(f"{title}.product", torch.matmul, [left, right], alone="yes")

        def add(product: Any, more: Any) -> Any:
            alpha, beta = how.get("alpha", 1), how.get("beta", 1)
            return (product if alpha == 1 else alpha * product) + (more if beta == 1 else beta * more)

        return self.run(title, add, [made, bias])

    def attention(self, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
        """The result; what stands for the sums of exponentials is not read."""
        *arrays, dropout, causal, scale = given
        operands = [x for x in arrays if x is not None]
        if dropout and not self.runner.second:
            self.random[title] = self._numbers().get_rng_state()
        places = self._positions(title, arrays[0]) if causal else []

        def attend(*local: Any) -> Any:
            *read, mask = _with_mask(local[: len(operands)])
            again = dropout and self.runner.second
            with _drawn_again(self.random[title] if again else None, self._numbers()):
                result = _attend(read, mask, local[len(operands) :], dropout, causal, scale)
            return result, result.new_zeros(result.shape[:-1], dtype=torch.float32)

        return self.run(title, attend, [*operands, *places], alone="yes")

    def attention_backward(self, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
        """Gradients of queries, keys and values, and of a mask where one is wanted: of the forward pass run again."""
        of, *arrays, result, sums, dropout, causal, scale, biased = given
        operands = [x for x in arrays if x is not None]
        state = self.random[title_of(_maker(node.args[5]))] if dropout else None
        places = self._positions(title, arrays[0]) if causal else []

        def derive(of: Any, *local: Any) -> Any:
            *read, mask = _with_mask(local[: len(operands)])
            wanted = [x.detach().requires_grad_() for x in read]
            mask = mask.detach().requires_grad_() if biased else mask
            with torch.enable_grad(), _drawn_again(state, self._numbers()):
                made = _attend(wanted, mask, local[len(operands) + 2 :], dropout, causal, scale)
            return torch.autograd.grad(made, [*wanted, mask] if biased else wanted, of)

        return self.run(title, derive, [of, *operands, result, sums, *places], alone="yes")

    def _numbers(self) -> Any:
        """What draws random numbers on the devices."""
        device = self.runner.mesh.device_type
        return torch.random if device in ("cpu", "meta") else torch.get_device_module(device)

    def grouped(self, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
        """Rows by the matrices of their groups, which end where the third operand says."""
        arrays = [*given, *how.values()][:3]
        rows, names = (0 if arrays[1].ndim == 3 else 1), [*how][max(0, 3 - len(given)) :]
        rest, more = given[3:], {name: how[name] for name in names}

        def product(left: Any, right: Any, ends: Any, *places: Any) -> Any:
            return node.target(left, right, _ends_here(ends, left.shape[rows], places), *rest, **more)

        return self.run(title, product, [*arrays, *self._rows(title, arrays[0], rows)], alone="yes")

    def grouped_backward(self, title: str, node: Any, given: Sequence[Any], how: Mapping[str, Any]) -> Any:
        """Gradients of the rows and of the matrices."""
        rows, matrices, ends, gradient = given

        def of_rows(of: Any, right: Any, ends: Any, *places: Any) -> Any:
            ends = _ends_here(ends, of.shape[0], places)
            return node.target(of.new_empty(self.shapes(f"{title}:0")[0]), right, ends, of)[0]

        def of_matrices(left: Any, of: Any, ends: Any, *places: Any) -> Any:
            ends = _ends_here(ends, of.shape[0], places)
            return node.target(left, of.new_empty(self.shapes(f"{title}:1")[0]), ends, of)[1]

        parts = ((of_rows, [gradient, matrices, ends]), (of_matrices, [rows, gradient, ends]))
        return [
            self.run(f"{title}:{k}", part, [*read, *self._rows(f"{title}:{k}", read[0], 0)], alone="yes")
            for k, (part, read) in enumerate(parts)
        ]

    def _rows(self, title: str, array: Any, dim: int) -> list[Any]:
        """Positions of the rows that a device has, where axes split them."""
        site = self.runner.site(title)
        axes = site.lies(site.reads[0])[dim]
        return [self.runner.positions(array.shape[dim], axes)] if axes else []

    def _positions(self, title: str, query: Any) -> list[Any]:
        """Of the queries that a device has, where axes split them."""
        site = self.runner.site(title).without_ring()
        axes = site.lies(site.reads[0])[-2]
        return [self.runner.positions(query.shape[-2], axes)] if axes else []


def _ends_here(ends: Any, rows: int, places: Sequence[Any]) -> Any:
    """Where groups end among the ``rows`` that a device has, of which ``places`` has the positions if not all."""
    return (ends - places[0][0]).clamp(0, rows).to(ends.dtype) if places else ends


def _maker(node: Any) -> Any:
    """Of one of several results: what makes them all."""
    return node.args[0] if "getitem" in str(node.target) else node


@contextmanager
def _drawn_again(state: Tensor | None, numbers: Any) -> Iterator[None]:
    """Random ``numbers`` are those that followed ``state``, if there is one; those after are as they would be."""
    if state is None:
        yield
        return
    own = numbers.get_rng_state()
    numbers.set_rng_state(state)
    try:
        yield
    finally:
        numbers.set_rng_state(own)


def _with_mask(arrays: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
    query, key, value, *mask = arrays
    return query, key, value, mask[0] if mask else None


def _attend(
    arrays: Sequence[Any], mask: Any, places: Sequence[Any], dropout: float, causal: bool, scale: Any
) -> Any:
    """``places`` are positions of the queries, where these are not all: each sees keys up to its own."""
    query, key, value = arrays
    shared = query.ndim > 2 and query.shape[-3] != key.shape[-3]
    if causal and places:
        causal, mask = False, places[0][:, None] >= torch.arange(key.shape[-2], device=key.device)
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, mask, dropout, causal, scale=scale, enable_gqa=shared
    )


KINDS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "addmm": Pieces.affine,
        "addmv": Pieces.affine,
        "baddbmm": Pieces.affine,
        "attention": Pieces.attention,
        "attention_backward": Pieces.attention_backward,
        "_grouped_mm": Pieces.grouped,
        "transformers.grouped_mm_fallback": Pieces.grouped,
        "transformers.grouped_mm_fallback_backward": Pieces.grouped_backward,
    }
)
"""By what operators are called in a program."""

LOCAL = frozenset(("mm", "bmm", "mv", "dot", "vdot", "_trilinear"))
"""Products that each device does of what it has, as they are."""
