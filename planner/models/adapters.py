"""Low-rank adapters beside frozen weights: LoRA, and QLoRA where these are quantised.

`adapted` writes them into a model's graph as what they are: two thin products beside each one that they adapt, and a
sum. All other weights are then frozen, so that FLOPs, memory and communication follow from the graph.

Stacks of Megatron Core have one beside each product that runs as one: queries, keys and values share the product down
to the rank, and so do gate and up, unless only some of them are named, which are then adapted one by one.

Source: Hu et al., LoRA, arXiv:2106.09685; Dettmers et al., QLoRA, arXiv:2305.14314; huggingface/peft
``src/peft/tuners/lora/layer.py`` (order of the operations), ``peft/utils/constants.py`` (``all-linear``);
NVIDIA-NeMo/Megatron-Bridge@2afd2d34 ``src/megatron/bridge/peft/lora.py`` (``LoRA``: names of products),
``canonical_lora.py`` (``CanonicalLoRA``: one by one), ``utils.py`` (``ParallelLinearAdapter``: order; its products are
Megatron Core's own, in 16 bits also where Transformer Engine's are in 8).
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from cluster_specs.record import Given, RecordT
from cluster_specs.software import SoftwareSpec
from planner.errors import InputError
from planner.flops import reduced_dims
from planner.graph import Block, Graph, Op
from planner.models.adapter_steps import (
    ALONE,
    GATHERED,
    RANK,
    Adapted,
    Base,
    DropoutPosition,
    Habits,
    steps_beside,
)
from planner.operators import is_in_mlp, operator_rule
from planner.saving import KEEPS_INPUTS, reads_own_norm

ALL_LINEAR = "all-linear"
"""Peft's word for every linear module of the layers."""

PRODUCTS: Mapping[str, str] = MappingProxyType(
    {"linear_qkv": "qkv", "linear_proj": "attn_out", "linear_fc1": "gate_up", "linear_fc2": "down"}
)
"""Megatron Core's names of products that are adapted whole -> the operator of a layer."""


def _listed(given: object) -> object:
    return tuple(part.strip() for part in given.split(",")) if isinstance(given, str) else given


INDIFFERENT = frozenset(
    {
        "base_model_name_or_path",
        "fan_in_fan_out",
        "inference_mode",
        "init_lora_weights",
        "lora_alpha",
        "peft_type",
        "revision",
        "task_type",
        "use_rslora",
    }
)
"""Fields of ``LoraConfig`` that change no shape: what they set is a factor, a first value or a name."""

UNTRAINED: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {"bias": ("none",), "modules_to_save": ([], ()), "use_dora": (False,)}
)
"""Fields of ``LoraConfig`` with which more than the two products is trained -> values with which it is not."""

RARE = frozenset({"a2a_experimental", "bitsandbytes", "dropout_position"})
"""Fields that are written where they say something else than for most."""


class Adapter(Given):
    """What is trained in place of a model's own weights, in the words of peft's ``LoraConfig``.

    Fields of that which change neither time nor memory (`INDIFFERENT`) are accepted and not kept.
    """

    r: int = Field(gt=0)
    """Rank: the width between the two products."""
    target_modules: Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)] = (
        "q_proj",
        "v_proj",
    )
    """Last words of the names of the modules that are adapted, or ``all-linear``."""
    lora_dropout: float = Field(default=0, ge=0, lt=1)
    """Share of an adapter's inputs that is dropped; a mask of them is kept for the backward."""
    dropout_position: DropoutPosition = "pre"
    """What is dropped: inputs, as peft does, or what an adapter adds (NeMo's word; AutoModel's habit)."""
    base: Base | None = None
    """Type in which linear weights of layers are stored, to be widened where they are used; None: that of training.
    Embedding, head, norms and biases are never quantised. In ``fp8``, as they are multiplied."""
    bitsandbytes: str | None = Field(default=None, pattern=r"^\d+(\.\d+)*$")
    """Version of the library that multiplies weights in 4 bits; None: of today. See `keeps_inputs`."""
    a2a_experimental: bool = False
    """Tensor ranks that share sequences exchange their columns of what an adapter adds for their own tokens, rather
    than gather all and drop what is not theirs: NeMo's and Megatron Bridge's word."""

    @model_validator(mode="before")
    @classmethod
    def _of_peft(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        for name in UNTRAINED.keys() & given.keys():
            if given[name] is not None and given[name] not in UNTRAINED[name]:
                raise ValueError(
                    f"{name} is {given[name]!r}, with which more is trained than the adapters that are priced: leave "
                    "it out"
                )
        return {name: value for name, value in given.items() if name not in INDIFFERENT | UNTRAINED.keys()}

    @model_serializer(mode="wrap")
    def _written(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without what most adapters have not: an exchange of tensor ranks, and a library that is named."""
        written: dict[str, Any] = fields(self)
        usual = type(self).model_fields
        return {
            name: value for name, value in written.items() if name not in RARE or value != usual[name].default
        }

    @property
    def keeps_inputs(self) -> bool:
        """Whether frozen products in 4 bits keep their inputs, which no gradient of theirs needs.

        Source: bitsandbytes-foundation/bitsandbytes@9e753741 (pull request 1270, in 0.43.2 of July 2024), which took
        them from ``bitsandbytes/autograd/_functions.py`` (``MatMul4Bit``).
        """
        named = self.base == "nf4" and self.bitsandbytes is not None
        return named and tuple(map(int, str(self.bitsandbytes).split("."))) < (0, 43, 2)

    def __str__(self) -> str:
        """As people say it: ``LoRA r=16 on q_proj, v_proj``."""
        kind = "QLoRA" if self.base == "nf4" else "LoRA"
        stored = f", frozen weights in {self.base}" if self.base else ""
        after = " of what is added" if self.dropout_position == "post" else ""
        dropped = f", dropout {self.lora_dropout:g}{after}" if self.lora_dropout else ""
        return f"{kind} r={self.r} on {', '.join(self.target_modules)}{dropped}{stored}"


def adapted(graph: Graph, adapter: Adapter, software: SoftwareSpec | None = None) -> Graph:
    """``graph`` with adapters on its layers as ``software`` has them (None: as peft), and all else frozen.

    Where units are adapted, all weights of those with adapters have gradients, which nothing reads but for these.

    Raises ``InputError`` where a target is no linear module of the layers, which it lists, or narrower than the rank.
    """
    layers = set(graph.sequence)
    modules = {m for name in layers for m in _linear_modules(graph.block[name])}
    words = set(adapter.target_modules)
    products = _named_products(graph) if adapts_products(software) else {}
    if missing := [w for w in adapter.target_modules if w not in modules | products.keys() | {ALL_LINEAR}]:
        raise InputError(
            f"no linear module of the layers of {graph.name} is called {missing[0]!r}; adapters go on "
            f"{', '.join(sorted(modules | products.keys())) or 'none of them'}, or {ALL_LINEAR}"
        )
    if ALL_LINEAR in words and "experts" in graph.dims:
        raise InputError(
            f"what {ALL_LINEAR} adapts of the stacked experts of {graph.name} differs between versions of peft: name "
            f"modules among {', '.join(sorted(modules))}"
        )
    targets = modules if ALL_LINEAR in words else words.union(*(products.get(w, ()) for w in words))
    for name in sorted(layers):
        _check_rank(graph, graph.block[name], targets, adapter.r)
    blocks = tuple(
        _with_adapters(b, targets, adapter, software) if b.name in layers else _frozen(b)
        for b in graph.blocks
    )
    return _changed(graph, blocks=blocks, dims={**graph.dims, RANK: adapter.r})


def adapts_products(software: SoftwareSpec | None) -> bool:
    """Whether adapters lie beside products, and tensor ranks hold parts of them."""
    return software is not None and software.adapts == "products"


def _named_products(graph: Graph) -> dict[str, frozenset[str]]:
    """Megatron Core's name of each product of the layers -> last words of its modules.

    Not of feed-forward layers where there are experts, whose modules have the same names.
    """
    found: dict[str, set[str]] = {}
    for block in (graph.block[name] for name in dict.fromkeys(graph.sequence)):
        for word, op in ((w, op) for w, name in PRODUCTS.items() for op in block.ops if op.name == name):
            if "experts" not in graph.dims or not is_in_mlp(block, op):
                found.setdefault(word, set()).update(m.name.rpartition(".")[2] for m in _modules(op, block))
    return {word: frozenset(names) for word, names in found.items()}


def _check_rank(graph: Graph, block: Block, targets: Iterable[str], rank: int) -> None:
    """Refuse adapters that are wider than what they adapt: two products of rank ``r`` make no more than ``min(d, k)``
    (arXiv:2106.09685, section 4.1: ``r << min(d, k)``).
    """
    for op in (op for op in block.ops if operator_rule(op).arithmetic == "matmul"):
        read = block.tensor[op.inputs[0]].dims
        for module in (m for m in _modules(op, block) if m.name.rpartition(".")[2] in targets):
            width = math.prod(graph.dims[d] for d in module.weights[0].dims if d in read)
            made = sum(math.prod(graph.dims[d] for d in w.dims if d not in read) for w in module.weights)
            if rank > min(width, made):
                raise InputError(
                    f"adapters of rank {rank} on {module.name}, which makes {made} numbers of {width}: give a rank of "
                    f"at most {min(width, made)}"
                )


def _changed(record: RecordT, **fields: object) -> RecordT:
    """A new record, as a copy would keep what was derived of the old one."""
    return type(record)(**{name: getattr(record, name) for name in type(record).model_fields} | fields)


def _linear_modules(block: Block) -> dict[str, str]:
    """Last word of the name of each linear module -> its whole name; experts are stacked and are none."""
    return {m.name.rpartition(".")[2]: m.name for op in block.ops for m in _modules(op, block)}


def _modules(op: Op, block: Block) -> Iterator[Adapted]:
    """Linear modules of a product, of which a fused one has several results; nothing else has any."""
    if operator_rule(op).arithmetic != "matmul":
        return
    contracted = set(reduced_dims(op, block))
    factors = [t for t in map(block.tensor.__getitem__, op.weights) if not contracted.isdisjoint(t.dims)]
    paired = [(w, out) for w, out in zip(factors, op.outputs, strict=False) if w.path.endswith(".weight")]
    for path in dict.fromkeys(w.path for w, _ in paired):
        weights, results = zip(*((w, out) for w, out in paired if w.path == path), strict=True)
        yield Adapted(path.removesuffix(".weight"), weights, results)


def _frozen(block: Block) -> Block:
    tensors = (t.model_copy(update={"role": "frozen"}) if t.role == "weight" else t for t in block.tensors)
    return _changed(block, tensors=tuple(tensors))


def _unstepped(block: Block) -> Block:
    """``block`` as a unit of the first FSDP has it: views of a flat parameter need gradients if one of them does.

    Source: pytorch/pytorch ``torch/distributed/fsdp/_wrap_utils.py`` (``_validate_frozen_params``: gradients of as many
    elements as there are, before they are scattered), ``_flat_param.py`` (``_use_unsharded_views``).
    """
    tensors = (t.model_copy(update={"stepped": False}) if t.role == "weight" else t for t in block.tensors)
    return _changed(block, tensors=tuple(tensors))


def _together(modules: list[Adapted]) -> list[Adapted]:
    """``modules`` of one product as one."""
    weights, results = (
        tuple(chain.from_iterable(parts)) for parts in zip(*(m[1:] for m in modules), strict=True)
    )
    return [Adapted(modules[0].name, weights, results)]


def _wanted(op: Op, block: Block, targets: Iterable[str], together: bool) -> list[Adapted]:
    """Modules of ``op`` that are adapted; all of a product, as one, where a stack has them ``together``."""
    modules = list(_modules(op, block))
    wanted = [m for m in modules if m.name.rpartition(".")[2] in targets]
    return _together(wanted) if together and len(wanted) == len(modules) > 1 else wanted


def _with_adapters(
    block: Block, targets: Iterable[str], adapter: Adapter, software: SoftwareSpec | None
) -> Block:
    beside = adapts_products(software)
    attributes: dict[str, bool] = {ALONE: True} if beside else {}
    if software is not None and beside and not software.overlap_tensor:
        attributes[GATHERED] = True
    dropout = adapter.dropout_position if adapter.lora_dropout else None
    habits = Habits(dropout, adapter.base, attributes)
    adapts = any(_wanted(op, block, targets, beside) for op in block.ops)
    joined = software is not None and software.adapts == "units" and adapts
    tensors = {t.name: t for t in (_unstepped if joined else _frozen)(block).tensors}
    ops: list[Op] = []
    for op in block.ops:
        wanted = _wanted(op, block, targets, beside)
        base = {out: f"{out}_base" for m in wanted for out in m.results}
        tensors |= {base[out]: tensors[out].model_copy(update={"name": base[out]}) for out in base}
        keeps = bool(beside and wanted) and reads_own_norm(op, block)
        keeps |= adapter.keeps_inputs and any(_modules(op, block))
        kept = {KEEPS_INPUTS: True} if keeps else {}
        outputs = tuple(base.get(out, out) for out in op.outputs)
        ops.append(op.model_copy(update={"outputs": outputs, "attributes": {**op.attributes, **kept}}))
        for module in wanted:
            made, steps = steps_beside(module, tensors[op.inputs[0]], tensors, habits)
            tensors |= {t.name: t for t in made}
            ops += steps
    return _changed(block, tensors=tuple(tensors.values()), ops=tuple(ops))
