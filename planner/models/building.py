"""A block under construction, and the parameter paths that its weights carry."""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Literal

from planner.graph import Block, Op, Tensor

Attribute = bool | int | float | str
Dtype = Literal["compute", "fp32", "int32", "bool"]


@lru_cache
def _schemes() -> Mapping[str, Mapping[str, str]]:
    text = (resources.files("planner.models") / "data" / "parameter_paths.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@lru_cache
def parameter_paths(scheme: str) -> Mapping[str, str]:
    """Role of a weight -> dotted path of its module in Hugging Face's classes, for one naming scheme.

    One that has a ``base`` has its paths too, less the prefix ``without``: those of a tower by itself.
    """
    own = dict(_schemes()[scheme])
    base, without = own.pop("base", ""), own.pop("without", "")
    paths = parameter_paths(base) if base else {}
    return {role: path.removeprefix(without) for role, path in paths.items()} | own


class BlockBuilder:
    """Collects the tensors and operators of one block; `build` freezes them.

    Weights are declared with their dims in the order of the framework's parameter: outputs, then inputs.
    """

    def __init__(self, name: str, paths: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.prefix = ""
        """Put before the names of tensors and operators declared from here on."""
        self.layer = "{layer}"
        """Stands in paths for the layer's number."""
        self._paths = paths or {}
        self._tensors: dict[str, Tensor] = {}
        self._ops: list[Op] = []
        self._inputs: list[str] = []

    def receive(self, name: str, *dims: str) -> str:
        """Declare a tensor that the block before hands over."""
        self._inputs.append(self.tensor(name, *dims))
        return self._inputs[-1]

    def tensor(
        self, name: str, *dims: str, dtype: Dtype = "compute", scale: float = 1.0, narrow: bool = False
    ) -> str:
        """Declare an activation."""
        return self._declare(
            Tensor(name=self.prefix + name, dims=dims, dtype=dtype, scale=scale, narrow=narrow)
        )

    def data(self, name: str, *dims: str, dtype: Dtype = "int32") -> str:
        """Declare an array of the training batch."""
        return self._declare(Tensor(name=self.prefix + name, dims=dims, dtype=dtype, role="input"))

    def weight(self, name: str, *dims: str, role: str, suffix: str = "", dtype: Dtype = "compute") -> str:
        """Declare a parameter; ``role`` is its key in the block's path scheme."""
        path = self._paths[role].replace("{layer}", self.layer) + suffix
        name = self.prefix + name
        return self._declare(Tensor(name=name, dims=dims, dtype=dtype, role="weight", path=path))

    def _declare(self, tensor: Tensor) -> str:
        assert tensor.name not in self._tensors, f"block {self.name}: two tensors named {tensor.name}"
        self._tensors[tensor.name] = tensor
        return tensor.name

    def op(
        self,
        name: str,
        kind: str,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        weights: tuple[str, ...] = (),
        **attributes: Attribute,
    ) -> str:
        """Append an operator; returns its first output."""
        self._ops.append(
            Op(
                name=self.prefix + name,
                kind=kind,
                inputs=inputs,
                outputs=outputs,
                weights=weights,
                attributes=attributes,
            )
        )
        return outputs[0]

    def dims(self, name: str) -> tuple[str, ...]:
        """Dims of a declared tensor."""
        return self._tensors[name].dims

    def scale(self, name: str) -> float:
        """Scale of a declared tensor."""
        return self._tensors[name].scale

    def linear_weights(self, name: str, *dims: str, role: str, columns: int, bias: bool) -> tuple[str, ...]:
        """Declare a weight, and a bias over its first ``columns`` dims where there is one."""
        weights = [self.weight(name, *dims, role=role, suffix=".weight")]
        if bias:
            weights.append(self.weight(f"{name}_bias", *dims[:columns], role=role, suffix=".bias"))
        return tuple(weights)

    def stacked_weights(self, name: str, *dims: str, role: str, bias: bool) -> tuple[str, ...]:
        """Declare the weights of all experts as one parameter, and their biases."""
        weights = [self.weight(name, *dims, role=role)]
        if bias:
            weights.append(self.weight(f"{name}_bias", *dims[:2], role=role, suffix="_bias"))
        return tuple(weights)

    def norm(
        self, name: str, x: str, output: str, *, style: str, role: str = "", over: str = "hidden"
    ) -> str:
        """Append a normalisation over the dims ``over`` (words).

        Styles: ``rms`` (weight), ``rms_wide`` (which multiplies in fp32), ``layer`` (weight and bias),
        ``layer_no_bias``, ``plain`` (no parameters).
        """
        dims = self.dims(x)
        axes = over.split()
        normed = self.tensor(output, *dims)
        moments = self.tensor(
            f"{output}_statistics",
            *(d for d in dims if d not in axes),
            dtype="fp32",
            scale=1 if style.startswith("rms") else 2,
        )
        weights = []
        if style != "plain":
            weights.append(self.weight(f"{output}_weight", *axes, role=role, suffix=".weight"))
        if style == "layer":
            weights.append(self.weight(f"{output}_bias", *axes, role=role, suffix=".bias"))
        wide: dict[str, Attribute] = {"wide": True} if style == "rms_wide" else {}
        return self.op(name, "norm", (x,), (normed,), tuple(weights), over=over, statistics=moments, **wide)

    def add(self, name: str, first: str, second: str, output: str) -> str:
        """Append a sum of two tensors of the same dims."""
        total = self.tensor(output, *self.dims(first))
        return self.op(name, "add", (first, second), (total,))

    def build(self, *outputs: str) -> Block:
        """Freeze the block, which hands over ``outputs``."""
        return Block(
            name=self.name,
            tensors=tuple(self._tensors.values()),
            ops=tuple(self._ops),
            inputs=tuple(self._inputs),
            outputs=outputs,
        )
