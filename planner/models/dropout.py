"""Dropout: which results each family's modules drop a share of as they train, and the operators that do it."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from planner.graph import Block, Graph, Op, Tensor
from planner.models.building import Attribute
from planner.models.measured import FAMILY
from planner.models.model import Model
from planner.models.reading import ConfigReader

PASSES: Mapping[str, Attribute] = MappingProxyType(
    {
        "eager_passes": 5 / 4,
        "eager_backward_passes": 5 / 6,
        "fused_passes": 1 / 4,
        "fused_backward_passes": 1 / 6,
    }
)
"""Bytes of PyTorch's kernels over those of one pass: forward ``native_dropout`` 2 read, 2 and a mask of 1 written;
backward 2 and the mask read, 2 written, where passes of a gradient read two arrays. Where a compiler makes it a part of
the kernels beside it, the mask is all that it adds.

Source: pytorch/pytorch ``aten/src/ATen/native/cuda/Dropout.cu``, ``torch/_decomp/decompositions.py``
(``native_dropout``: what compilers see is a comparison of random numbers and a product).
"""


class Site(NamedTuple):
    """A share that a configuration names, and what it is dropped of."""

    key: str
    usual: float
    """What the class has where the key is absent."""
    tensors: tuple[str, ...]
    """As the family's blocks call them."""


HALVES = ("attn_projected", "cross_attn_projected", "mlp_out")
"""What each half of a layer adds to the residual."""

SCORES = ("probabilities", "cross_probabilities")
"""Attention's, after the softmax."""

OF_SCORES = Site("attention_dropout", 0.0, SCORES)

OF_SUMS = "hidden_dropout"
"""Megatron's word for what residual sums drop, whatever the model: of those whose own class drops none there.

Source: NVIDIA/Megatron-LM@core_v0.16.1 ``megatron/core/transformer/transformer_config.py``.
"""

RESIDUAL = "_residual"
"""End of the names of residual sums."""

Dropout = Literal["modules", "sums", "none"]
"""What drops (`cluster_specs.software.SoftwareSpec.dropout`)."""


def _bert(*embedded: str) -> tuple[Site, ...]:
    return (
        Site("hidden_dropout_prob", 0.1, (*embedded, *HALVES)),
        Site("attention_probs_dropout_prob", 0.1, SCORES),
    )


def _gpt2(usual: float, embedded: str) -> tuple[Site, ...]:
    return (
        Site("embd_pdrop", usual, (embedded,)),
        Site("resid_pdrop", usual, HALVES),
        Site("attn_pdrop", usual, SCORES),
    )


def _bart(usual: float, embedded: str, of_scores: float) -> tuple[Site, ...]:
    return (
        Site("dropout", usual, (embedded, *HALVES)),
        Site("attention_dropout", of_scores, SCORES),
        Site("activation_dropout", 0.0, ("activated",)),
    )


T5 = (Site("dropout_rate", 0.1, ("embedded", *HALVES, "activated", "memory", "final_normed", *SCORES)),)

SITES: Mapping[str, tuple[Site, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            ("bert", "camembert", "electra", "roberta", "xlm-roberta"), _bert("embedding_normed")
        ),
        "biogpt": (*_bert("positioned"), Site("activation_dropout", 0.0, ("activated",))),
        "distilbert": (
            Site("dropout", 0.1, ("embedding_normed", "mlp_out")),
            Site("attention_dropout", 0.1, SCORES),
        ),
        **dict.fromkeys(("gpt2", "gpt_bigcode", "openai-gpt"), _gpt2(0.1, "positioned")),
        **dict.fromkeys(("codegen", "gptj"), _gpt2(0.0, "embedded")),
        "ctrl": (Site("embd_pdrop", 0.1, ("embedded",)), Site("resid_pdrop", 0.1, HALVES)),
        "opt": (Site("dropout", 0.1, HALVES), OF_SCORES),
        "xglm": _bart(0.1, "embedded", 0.1),
        **dict.fromkeys(("bart", "mbart"), _bart(0.1, "embedding_normed", 0.0)),
        **dict.fromkeys(("marian", "pegasus"), _bart(0.1, "positioned", 0.0)),
        "m2m_100": _bart(0.1, "embedded", 0.1),
        "whisper": _bart(0.0, "positioned", 0.0),
        **dict.fromkeys(("mt5", "t5", "umt5"), T5),
        "seed_oss": (Site("residual_dropout", 0.1, HALVES), Site("attention_dropout", 0.1, SCORES)),
        "gpt_neo": (
            Site("embed_dropout", 0.0, ("positioned",)),
            Site("resid_dropout", 0.0, HALVES),
            OF_SCORES,
        ),
        "gpt_neox": (Site("hidden_dropout", 0.0, ("embedded", *HALVES)), OF_SCORES),
        "bloom": (Site("hidden_dropout", 0.0, HALVES), OF_SCORES),
        "phi": (Site("embd_pdrop", 0.0, ("embedded",)), Site("resid_pdrop", 0.0, HALVES), OF_SCORES),
        "phi3": (Site("resid_pdrop", 0.0, HALVES), OF_SCORES),
        "starcoder2": (
            Site("embedding_dropout", 0.0, ("embedded",)),
            Site("residual_dropout", 0.0, HALVES),
            OF_SCORES,
        ),
        **dict.fromkeys(("persimmon", "stablelm"), (Site("hidden_dropout", 0.0, ("mlp_out",)), OF_SCORES)),
        FAMILY: (Site("dropout", 0.0, ("positioned", *HALVES)), OF_SCORES),
        "vit": (
            Site("hidden_dropout_prob", 0.0, ("positioned", *HALVES)),
            Site("attention_probs_dropout_prob", 0.0, SCORES),
        ),
    }
)
"""``model_type`` -> what its class drops; of those not here scores alone, by ``attention_dropout`` (`OF_SCORES`).

Left out are whole layers that are dropped at times (``layerdrop``) and heads of tasks that no family here has.

Source: huggingface/transformers 5.24.0 ``src/transformers/models/<family>/{configuration,modeling}_<family>.py``.
"""


def sites_of(family: str) -> tuple[Site, ...]:
    """What the class of ``family`` drops."""
    return SITES.get(family, (OF_SCORES,))


def dropped_shares(read: ConfigReader, family: str) -> dict[str, float]:
    """Tensor -> the share of it that training drops, by a configuration; those of which nothing is are left out."""
    shares = ((site, read.share(site.key, default=site.usual)) for site in sites_of(family))
    return {name: share for site, share in shares for name in site.tensors if share}


def dropped_tensors(model: Model) -> frozenset[str]:
    """Tensors of which training ``model`` drops a share; none of a graph that was given as such."""
    if model.graph is not None:
        return frozenset()
    return frozenset(dropped_shares(ConfigReader(model.config, model.name), model.family))


class Shares(NamedTuple):
    """What Megatron's modules drop."""

    sums: float
    """Of what each residual sum adds, and of the embedding's result (``hidden_dropout``)."""
    scores: float
    """Of attention's probabilities (``attention_dropout``)."""


def shares_of(model: Model) -> Shares:
    """The two shares that say of ``model`` what its configuration does, where residual sums drop."""
    if model.graph is not None:
        return Shares(0.0, 0.0)
    read = ConfigReader(model.config, model.name)
    found = dropped_shares(read, model.family)
    sums, scores = (max((found.get(name, 0.0) for name in names), default=0.0) for names in (HALVES, SCORES))
    return Shares(sums or read.share(OF_SUMS, default=0.0), scores)


def with_dropout(model: Model, share: float, of_scores: float | None = None) -> Model:
    """``model`` with the same ``share`` in place of all that its configuration names, or another of attention's."""
    sites = sites_of(model.family)
    scores = share if of_scores is None else of_scores
    shares = {site.key: scores if set(site.tensors) <= set(SCORES) else share for site in sites}
    if not any(set(site.tensors) & set(HALVES) for site in sites):
        shares[OF_SUMS] = share
    return model.model_copy(update={"config": {**model.config, **shares}})


def as_trained(graph: Graph, model: Model, how: Dropout) -> Graph:
    """``graph`` of ``model`` with the dropout of its configuration, which modules do, residual sums, or nothing."""
    if how == "modules":
        return dropped(graph, dropped_tensors(model))
    shares = shares_of(model)
    if how == "none" or not any(shares):
        return graph
    first = graph.block[graph.first].outputs if graph.first is not None and shares.sums else ()
    scores = SCORES if shares.scores else ()
    blocks = (
        _dropped(block, (*first, *scores)) if block.name == graph.first else _dropped(block, scores)
        for block in graph.blocks
    )
    return graph.model_copy(update={"blocks": tuple(map(_in_sums, blocks) if shares.sums else blocks)})


def is_dropout(op: Op) -> bool:
    """Whether an operator drops a share of what it reads, and does nothing else."""
    return PASSES.items() <= op.attributes.items()


def _in_sums(block: Block) -> Block:
    """``block`` whose residual sums keep masks of what they add."""
    sums = [op.name for op in block.ops if op.kind == "add" and op.name.endswith(RESIDUAL)]
    made = {op.name: block.tensor[op.outputs[0]] for op in block.ops if op.name in sums}
    marked = (
        op.model_copy(update={"attributes": {**op.attributes, "mask": _mask(made[op.name]).name}})
        if op.name in made
        else op
        for op in block.ops
    )
    return _rebuilt(block, (*block.tensors, *map(_mask, made.values())), marked)


def dropped(graph: Graph, tensors: Collection[str]) -> Graph:
    """``graph`` with dropout of ``tensors``, each of which keeps its mask.

    Plain attention keeps its probabilities once more, as the softmax made them; a fused kernel draws the mask anew.
    """
    if not tensors:
        return graph
    return graph.model_copy(update={"blocks": tuple(_dropped(block, tensors) for block in graph.blocks)})


def _dropped(block: Block, wanted: Collection[str]) -> Block:
    tensors = {t.name: t for t in block.tensors}
    ops: list[Op] = []
    for op in block.ops:
        found = [name for name in op.outputs if name in wanted]
        tensors |= {whole.name: whole for whole in (_whole(tensors[name]) for name in found)}
        made = tuple(_whole(tensors[name]).name if name in found else name for name in op.outputs)
        scores = str(op.attributes.get("probabilities"))
        masked = [scores] if scores in wanted else []
        tensors |= {mask.name: mask for mask in (_mask(tensors[name]) for name in (*found, *masked))}
        marks: dict[str, Attribute] = {"mask": _mask(tensors[scores]).name} if masked else {}
        marks |= {"dropped": True} if found else {}
        ops.append(op.model_copy(update={"outputs": made, "attributes": {**op.attributes, **marks}}))
        ops += [_dropout(tensors[name]) for name in found]
    return _rebuilt(block, tensors.values(), ops)


def _rebuilt(block: Block, tensors: Iterable[Tensor], ops: Iterable[Op]) -> Block:
    """``block`` of other tensors and operators, checked."""
    parts = {"tensors": tuple(tensors), "ops": tuple(ops)}
    return Block(name=block.name, inputs=block.inputs, outputs=block.outputs, **parts)


def _whole(tensor: Tensor) -> Tensor:
    """What is there before a share is dropped."""
    return tensor.model_copy(update={"name": f"{tensor.name}_whole"})


def _mask(tensor: Tensor) -> Tensor:
    return tensor.model_copy(update={"name": f"{tensor.name}_mask", "dtype": "bool"})


def _dropout(tensor: Tensor) -> Op:
    return Op(
        name=f"{tensor.name}_dropout",
        kind="elementwise",
        inputs=(_whole(tensor).name,),
        outputs=(tensor.name,),
        attributes={"linear": True, "mask": _mask(tensor).name, **PASSES},
    )
