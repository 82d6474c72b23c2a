"""Host time to issue a block's kernels and collectives: Python, autograd and launches, one after the other.

What is replayed from a captured graph, one for each layer, is issued as one operator. For mixtures of experts the host
issues many operators beside those that compute much (`cluster_specs.habits.RoutingOperators`), and where a library has
a kernel for each expert, launches for each one that a rank holds. The steps of an adapter are issued as one operator:
they are five kernels, and an operator of an eager layer stands for four (two norms of eight, rotation of twelve, seven
products, and nine more, in eleven operators). Dropout is a kernel forward and one backward, or where a compiler fuses
kernels none of its own. A product of Transformer Engine goes through much Python, which until
1.11 took longer than later (`cluster_specs.habits.IssuedProducts`).

Sources: NVIDIA/Megatron-LM@d98e8a64 ``megatron/core/transformer/transformer_layer.py`` (``_te_cuda_graph_replay``: what
each `planner.plans.GraphPart` holds); NVIDIA/TransformerEngine@d0067d0d
``transformer_engine/common/gemm/cublaslt_gemm.cu`` (``multi_stream_cublas_gemm``: a launch for each expert);
huggingface/peft ``src/peft/tuners/lora/layer.py`` (``result + lora_B(lora_A(dropout(x))) * scaling``);
huggingface/transformers ``modeling_llama.py`` (``LlamaRMSNorm``, ``apply_rotary_pos_emb``).
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from planner.graph import Block, Op
from planner.models.adapter_steps import is_later_step
from planner.models.dropout import is_dropout
from planner.operators import ROUTING_KINDS, operator_rule
from planner.plans import NARROW
from planner.sharding.pricing import Pricer
from planner.sharding.routing import has_experts

KERNELS = 4
"""That an operator of an eager layer stands for."""

NARROW_LAUNCHES = 4
"""Launches for each expert's product in 8 bits or fewer: the product, a cast of what it reads, and both scales sorted.

Source: NVIDIA/TransformerEngine@d0067d0d ``transformer_engine/common/gemm/cublaslt_gemm.cu`` (as above).
"""


def captured(block: Block, parts: Sequence[str]) -> frozenset[str]:
    """Names of operators of ``block`` that are replayed from graphs of ``parts`` of a layer.

    The attention is everything up to the first sum after it; ``moe_router`` is what follows and waits for no expert.
    """
    names = [op.name for op in block.ops]
    attention = next((i for i, op in enumerate(block.ops) if op.kind == "attention"), None)
    if attention is None or not parts:
        return frozenset()
    sums = (i for i, op in enumerate(block.ops) if op.kind == "add" and i > attention)
    half = next(sums, len(names) - 1) + 1
    after = _after_dispatch(block)
    mixture = bool(after)
    found = set(names[:half]) if "attn" in parts else set()
    if ("moe" if mixture else "mlp") in parts:
        found |= set(names[half:])
    elif mixture and "moe_router" in parts:
        found |= set(names[half:]) - after
    return frozenset(found)


def _after_dispatch(block: Block) -> set[str]:
    """The dispatch of tokens to experts and every operator that needs something of it."""
    names: set[str] = set()
    made: set[str] = set()
    for op in block.ops:
        if op.kind == "dispatch" or made.intersection(op.inputs):
            names.add(op.name)
            made |= set(op.outputs)
    return names


class Issuing(NamedTuple):
    """What the host does for one block."""

    pricer: Pricer
    block: Block
    captured: frozenset[str]
    experts: float
    """That a rank holds."""

    @classmethod
    def of(cls, pricer: Pricer, block: Block, experts: float) -> "Issuing":
        """With what is replayed from graphs of the job."""
        return cls(pricer, block, captured(block, pricer.job.graph_parts), experts)

    @property
    def graph(self) -> float:
        """Host time of a replay [s]."""
        return self.pricer.software.host_operator if self.captured else 0.0

    def operator(self, op: Op) -> float:
        """Host time of ``op`` in the forward, outside of graphs [s]."""
        if op.kind in ROUTING_KINDS:
            return self._routing(op)
        if op.kind == "view" or op.name in self.captured or is_later_step(op):
            return 0.0
        if is_dropout(op):
            fused = self.pricer.software.fused_elementwise
            return 0.0 if fused else self.pricer.software.host_operator / KERNELS
        return self._alone(op) + self._launches(op)

    def gradient(self, op: Op) -> float:
        """The same of its gradients [s]: routing has no weights, frozen ones have no gradient; else there are two."""
        frozen = bool(op.weights) and all(self.block.tensor[w].role == "frozen" for w in op.weights)
        once = frozen or op.kind in ROUTING_KINDS or is_dropout(op)
        return (1 if once else 2) * self.operator(op)

    def before_exchange(self) -> float:
        """Of a dispatch, what is issued until the counts of tokens are known to the device [s]."""
        issued = self.pricer.routing_operators
        parts = self.pricer.job.graph_parts
        if issued is None or "moe" in parts:
            return 0.0
        choice = 0.0 if "moe_router" in parts else issued.choice
        prepared = 0.0 if "moe_preprocess" in parts else issued.preparation
        return self.pricer.software.host_operator * (choice + prepared)

    def _routing(self, op: Op) -> float:
        """Host time of the exchange of tokens that no graph holds [s]."""
        issued, each = self.pricer.routing_operators, self.pricer.software.host_operator
        if issued is None or "moe" in self.pricer.job.graph_parts:
            return 0.0
        if op.kind == "combine":
            return each * issued.combine
        return self.before_exchange() + each * issued.dispatch

    def _alone(self, op: Op) -> float:
        """Host time of one operator; a head's product is PyTorch's own, even where those of layers are not [s]."""
        products = self.pricer.software.host_product
        head = self.block.name == self.pricer.graph.last
        if products is None or head or not op.weights or operator_rule(op).arithmetic != "matmul":
            return self.pricer.software.host_operator
        return products.narrow if self.pricer.job.precision in NARROW else products.wide

    def _launches(self, op: Op) -> float:
        """Launches for each expert of a rank [s]."""
        each = self.pricer.software.host_launch
        if each is None or not has_experts(op, self.block):
            return 0.0
        return each * self.experts * (NARROW_LAUNCHES if self.pricer.job.precision in NARROW else 1)


def issue_seconds(
    pricer: Pricer, block: Block, experts: float, again: Collection[str], collectives: tuple[int, int]
) -> tuple[float, float]:
    """Host time of the forward and of the backward, which repeats ``again``; both with their ``collectives`` [s].

    ``experts`` of a mixture are on a rank. Collectives count wherever they are issued.
    """
    host = Issuing.of(pricer, block, experts)
    repeated = (op for op in block.ops if op.name in again)
    forward = host.graph + sum(map(host.operator, block.ops))
    backward = host.graph + sum(map(host.gradient, block.ops)) + sum(map(host.operator, repeated))
    before, after = (pricer.software.host_collective * number for number in collectives)
    return forward + before, backward + after
