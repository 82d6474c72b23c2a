"""Attention over a sequence that is split: how ranks get at each other's keys and values.

``all_gather`` brings all keys and values, then runs one kernel. ``ring`` passes them on, rank by rank, beside a kernel
for each part, and merges the partial results; ``gathered_ring`` computes in the same steps once everything is there.
``all_to_all`` deals out heads instead, so that each rank has whole sequences of some. Causal work is dealt out evenly:
each rank holds an early and a late chunk of the sequence.

Source: Llama 3, arXiv:2407.21783, section 3.3.2 (all-gather); Liu et al., Ring Attention, arXiv:2310.01889;
pytorch/pytorch ``torch/distributed/tensor/experimental/_context_parallel/_attention.py`` (steps, merges, gradients
passed on in fp32); Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509, section 3 (all-to-all).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple

from cluster_specs.cluster import DeviceSpec
from cost_models.attention import AttentionShape
from cost_models.compute import attention_seconds, stream_seconds
from cost_models.constants import constants
from planner.sharding.costs import Comm, OpCost


class Split(NamedTuple):
    """One attention operator on one device, its queries and keys split along the sequence."""

    device: DeviceSpec
    dtype: str
    comm: Callable[[str, float], Comm]
    """A collective, by name and bytes of the whole array, over the ranks of the sequence."""
    keeps_gathered: bool
    """Gathered keys and values stay for the backward."""
    scatters: Literal["both", "one", "none"]
    """Of which of the gradients of keys and values a rank keeps its part as they are summed.

    A partitioner sums that of one of the two, or both, whole on every rank, which slices its part.
    """
    shape: AttentionShape
    """Whole sequences, of an equal share of the batch: a rank's even part of the work."""
    kernel: str
    degree: int
    query_bytes: float
    """On this device; as much as the result."""
    kv_bytes: float
    """Keys and values on this device."""

    def seconds(self, shape: AttentionShape, backward: bool = False) -> float:
        """One kernel."""
        return attention_seconds(shape, self.device, self.dtype, self.kernel, backward=backward).seconds


def _gathered(split: Split) -> OpCost:
    full = split.degree * split.kv_bytes
    gather = split.comm("all_gather", full)
    sums: tuple[Comm, ...] = (split.comm("reduce_scatter", full),)
    if split.scatters != "both":
        kinds = ("reduce_scatter" if split.scatters == "one" else "all_reduce", "all_reduce")
        sums = tuple(split.comm(kind, full / 2) for kind in kinds)
    forward, backward = split.seconds(split.shape), split.seconds(split.shape, backward=True)
    again = () if split.keeps_gathered else (gather,)
    return OpCost(forward, backward, 0.0, (gather,), (*again, *sums))


def _dealt_by_heads(split: Split) -> OpCost:
    """Queries, keys, values and results change places, each way; heads that do not divide leave ranks idle."""
    n, shape = split.degree, split.shape
    heads = math.ceil(shape.heads / n)
    kv_heads = max(1, math.ceil(shape.kv_heads / n))
    copied = kv_heads * n / shape.kv_heads  # groups of fewer heads than ranks are sent to several
    whole = replace(shape, batch=shape.batch * n, heads=heads, kv_heads=kv_heads)
    there = split.comm("all_to_all", split.query_bytes + copied * split.kv_bytes)
    back = split.comm("all_to_all", split.query_bytes)
    comm = (there, back)
    return OpCost(split.seconds(whole), split.seconds(whole, backward=True), 0.0, comm, comm)


class Steps(NamedTuple):
    """Kernels of one direction [s]: on the rank's own keys, and on those of each other rank, merged."""

    own: float
    other: float


def ring_exposed(n: int, steps: Steps, hop: float, passed: float = 0.0) -> float:
    """What the kernels of ``n`` ranks do not hide of the hops between them [s].

    A ``hop`` of keys and values is on its way while a kernel works on the ones before; with ``passed``, the hop of
    gradients, these follow one step later, and the last, which go home, have nothing to hide behind.
    """
    exposed = max(0.0, hop - steps.own) + (n - 2) * max(0.0, hop + passed - steps.other)
    return exposed + max(0.0, passed - steps.other) + passed


def _steps(split: Split, backward: bool, merge_bytes: float) -> Steps:
    n, shape = split.degree, split.shape
    if shape.window is not None:
        # Parts out of reach are left out: the work of the whole call, in equal steps.
        each = split.seconds(shape, backward) / n
        own, other = each, each
    else:
        part = replace(shape, batch=shape.batch * n, q_len=shape.q_len / n, kv_len=shape.kv_len / n)
        half = replace(part, kv_len=part.kv_len / 2, causal=False) if shape.causal else part
        own, other = split.seconds(part, backward), split.seconds(half, backward)
    results = shape.batch * shape.heads * shape.q_len * shape.v_dim
    merge = stream_seconds(results * merge_bytes, split.device).seconds
    return Steps(own, other + merge)


def _in_steps(split: Split, exchange: str) -> OpCost:
    """Copies for the next step hide behind the kernel of this one; the last gradients have nothing to hide behind."""
    n, facts = split.degree, constants("kernels")[exchange]
    forward = _steps(split, False, facts["forward_merge_bytes"])
    backward = _steps(split, True, facts["backward_merge_bytes"])
    gather = split.comm("all_gather", n * split.kv_bytes)
    hop = gather.seconds / (n - 1)
    passed = facts["gradient_width"] * hop
    gradients_sent = n * facts["gradient_width"] * split.kv_bytes
    if exchange == "ring":
        name = "send"
        exposed = ring_exposed(n, forward, hop)
        again = ring_exposed(n, backward, hop, passed)
    else:
        name = "all_gather"
        exposed = max(0.0, gather.seconds - forward.own)
        again = max(0.0, gather.seconds - backward.own)
        again += (n - 1) * max(0.0, passed - backward.other) + passed
    there = gather._replace(collective=name, seconds=exposed)
    keys = gather._replace(collective=name, seconds=again)
    gradients = gather._replace(collective="send", seconds=0.0, sent_bytes=gradients_sent)
    held = _held_in_steps(split, facts["gradient_width"]) if exchange == "gathered_ring" else 0.0
    computed, back = (steps.own + (n - 1) * steps.other for steps in (forward, backward))
    return OpCost(computed, back, 0.0, (there,), (keys, gradients), held)


def _held_in_steps(split: Split, width: float) -> float:
    """Most that a step of PyTorch's backward holds beside gradients of queries, keys, values and the result [bytes].

    Gathered keys and values, what they were gathered from, and their gradients by the kernel; the sum of these that
    came, with this step's, and as it goes on, in ``width``; the queries' gradients before and after half of them is
    added. What the operator's inputs have in the end is not there yet.
    """
    queries = (2 * width + 1 / 2 - 1) * split.query_bytes
    return queries + (split.degree + 1 + 1 + 3 * width - 1) * split.kv_bytes


EXCHANGES: Mapping[str, Callable[[Split], OpCost]] = MappingProxyType(
    {
        "all_gather": _gathered,
        "ring": lambda split: _in_steps(split, "ring"),
        "gathered_ring": lambda split: _in_steps(split, "gathered_ring"),
        "all_to_all": _dealt_by_heads,
    }
)
"""How keys and values are exchanged -> what the operator costs."""
