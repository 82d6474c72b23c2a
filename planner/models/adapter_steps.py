"""What an adapter does beside a frozen product, step by step: ``y + B A x``, with dropout before or after.

Source: huggingface/peft ``src/peft/tuners/lora/layer.py`` (order of the operations); NVIDIA-NeMo/Automodel@03bd7a9b
``nemo_automodel/components/_peft/lora.py`` (``PeftConfig``: ``dropout_position`` is "post" unless told otherwise;
``LinearLoRA.forward``).
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from planner.graph import Block, Op, Tensor

RANK = "adapter_rank"
"""Dim between the two products of an adapter."""

ALONE = "alone"
"""Attribute of steps that are kernels by themselves on stacks whose other chains of such operators are fused."""

GATHERED = "gathered"
"""Attribute of steps that read their input as the product beside them gathered it over tensor ranks."""

Base = Literal["nf4", "int8", "fp8", "bf16"]
"""Types that frozen weights are stored in, where it is not that of training."""

DropoutPosition = Literal["pre", "post"]
"""Whether inputs of an adapter are dropped, or what it adds."""

DROPOUT_PASSES: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "pre": {"eager_passes": 5 / 4, "eager_backward_passes": 11 / 6},
        "post": {"eager_passes": 5 / 4, "eager_backward_passes": 5 / 6},
    }
)
"""Bytes of its kernels over those of one pass forward (2 read, 2 written) and backward (twice what is read).

Forward ``native_dropout`` writes a mask, too (2 + 2 + 1). Backward it reads that (2 + 1 + 2), and of an input autograd
adds what comes of it to the gradient that the module's frozen product sends to the same (2 + 2 + 2).
"""

CLONE_BYTES: Mapping[str | None, int] = MappingProxyType({"nf4": 4})
"""Type of the frozen weights -> bytes that copying the result before the sum moves an element.

Source: huggingface/peft ``src/peft/tuners/lora/bnb.py`` (``Linear4bit.forward``: ``result.clone()``).
"""


def sum_passes(base: Base | None) -> Mapping[str, float]:
    """Passes of ``result + lora_B(...) * scaling``: product (2 + 2) and sum (4 + 2), and of 4 bits a copy.

    Backward the product's alone, as sums and copies hand their gradient on.
    """
    return {"eager_passes": (10 + CLONE_BYTES.get(base, 0)) / 6, "eager_backward_passes": 4 / 10}


class Adapted(NamedTuple):
    """One module that is adapted: its weights, each with what the product makes of it."""

    name: str
    weights: tuple[Tensor, ...]
    results: tuple[str, ...]


class Habits(NamedTuple):
    """How adapters of a job run."""

    dropout: DropoutPosition | None
    """None: nothing is dropped."""
    base: Base | None
    attributes: Mapping[str, bool]
    """Of the steps: `ALONE`, `GATHERED`."""


def steps_beside(
    module: Adapted, x: Tensor, tensors: Mapping[str, Tensor], habits: Habits
) -> tuple[list[Tensor], list[Op]]:
    """Down to the rank, up again, and the sum with what the frozen weight made; dropout before or behind these two.

    Where tensor ranks share the sequence, Transformer Engine hands on the normed input that it gathered for its own
    product, unless its gathers overlap products (Megatron-Bridge ``get_adapter_attributes_from_linear``).
    """
    name = module.weights[0].name
    inner = [d for d in module.weights[0].dims if d in x.dims]
    down = Tensor(
        name=f"{name}_lora_a", dims=(RANK, *inner), role="weight", path=f"{module.name}.lora_A.weight"
    )
    rows = tuple(d for d in x.dims if d not in inner)
    narrow = x.model_copy(update={"name": f"{name}_lora_down", "dims": (*rows, RANK)})
    added, steps, read = [down, narrow], list[Op](), x
    if habits.dropout == "pre":
        read = x.model_copy(update={"name": f"{name}_lora_input"})
        dropped = _dropout(f"{name}_lora", x, read, habits)
        added += dropped[0]
        steps.append(dropped[1])
    shared = {name: True for name in habits.attributes if name == GATHERED}
    steps.append(_op(down.name, "matmul", (read,), (narrow,), (down,), shared))
    results = [tensors[out] for out in module.results]
    ups = [
        Tensor(
            name=f"{w.name}_lora_b",
            dims=(*(d for d in w.dims if d not in inner), RANK),
            role="weight",
            path=f"{module.name}.lora_B.weight",
        )
        for w in module.weights
    ]
    deltas = [out.model_copy(update={"name": f"{out.name}_lora"}) for out in results]
    steps.append(_op(ups[0].name, "matmul", (narrow,), deltas, ups))
    added += [*ups, *deltas]
    if habits.dropout == "post":
        left = [delta.model_copy(update={"name": f"{delta.name}_left"}) for delta in deltas]
        for delta, kept in zip(deltas, left, strict=True):
            dropped = _dropout(delta.name, delta, kept, habits)
            added += dropped[0]
            steps.append(dropped[1])
        deltas = left
    bases = [tensors[f"{out.name}_base"] for out in results]
    # One sum for all parts of a fused module, as they are views of one array.
    summed = {**sum_passes(habits.base), **{name: True for name in habits.attributes if name == ALONE}}
    steps.append(_op(f"{name}_lora_add", "add", (*bases, *deltas), results, attributes=summed))
    return added, steps


def _dropout(name: str, x: Tensor, left: Tensor, habits: Habits) -> tuple[list[Tensor], Op]:
    """What is ``left`` of ``x``, and the mask that the backward reads; ``name`` is what theirs begin with."""
    assert habits.dropout is not None
    mask = x.model_copy(update={"name": f"{name}_mask", "dtype": "bool"})
    passes = DROPOUT_PASSES[habits.dropout]
    attributes: dict[str, bool | str | float] = {
        "linear": True,
        "mask": mask.name,
        **passes,
        **habits.attributes,
    }
    return [left, mask], _op(f"{name}_dropout", "elementwise", (x,), (left,), attributes=attributes)


def narrow_product(op: Op, block: Block) -> Literal["down", "up"] | None:
    """Which of an adapter's two products ``op`` is: down to the rank, or up again; None: neither."""
    if any(RANK in block.tensor[name].dims for name in op.outputs):
        return "down"
    return "up" if any(RANK in block.tensor[name].dims for name in op.inputs) else None


def is_later_step(op: Op) -> bool:
    """Whether it is one of an adapter's steps other than the product down to the rank."""
    return op.name.endswith(("_lora_dropout", "_lora_b", "_lora_add"))


def _op(
    name: str,
    kind: str,
    inputs: Iterable[Tensor],
    outputs: Iterable[Tensor],
    weights: Iterable[Tensor] = (),
    attributes: Mapping[str, bool | str | float] = MappingProxyType({}),
) -> Op:
    names = [tuple(t.name for t in group) for group in (inputs, outputs, weights)]
    return Op(
        name=name, kind=kind, inputs=names[0], outputs=names[1], weights=names[2], attributes=attributes
    )
