"""The collectives that turn one sharding of a tensor into another.

Per axis: partial -> replicated is an all-reduce, partial -> sharded a reduce-scatter, sharded -> replicated an
all-gather, sharded -> sharded elsewhere an all-to-all, replicated -> sharded a local slice (free). Slices
and reduce-scatters come first and gathers last, so that the other moves carry the fewest bytes.

Source: Xu et al., GSPMD, arXiv:2105.04663, section 4.5; Zheng et al., Alpa, arXiv:2201.12023, table 2.
"""

from typing import NamedTuple

from planner.graph import Tensor
from planner.sharding.spec import ShardingSpec, Sizes


class Move(NamedTuple):
    """One collective over the group of ``axes``.

    ``full_bytes`` is the whole array: the result of an all-gather, the input of a reduce-scatter, the
    buffer of an all-reduce, one rank's buffer of an all-to-all.
    """

    collective: str
    axes: tuple[str, ...]
    full_bytes: float


_KIND = {
    (True, False): "all_reduce",
    (True, True): "reduce_scatter",
    (False, False): "all_gather",
    (False, True): "all_to_all",
}
"""(source is partial, target is sharded) -> collective."""


def _kind(source: str | None, target: str | None) -> str | None:
    if source == target or source is None:
        return "slice" if source is None and target not in (None, "+") else None
    return _KIND[source == "+", target is not None]


def moves(
    sizes: Sizes, tensor: Tensor, source: ShardingSpec, target: ShardingSpec, element_bytes: float
) -> tuple[Move, ...]:
    """Collectives, in order, that turn ``source`` into ``target``; empty where nothing moves."""
    if source == target:
        return ()
    kinds: dict[str, list[str]] = {}
    has, wants = source.by_axis(), target.by_axis()
    for axis in sizes.mesh.axes:
        kind = _kind(has.get(axis), wants.get(axis))
        if kind is not None:
            kinds.setdefault(kind, []).append(axis)
    if not kinds:
        return ()
    # Ranks that hand tokens to experts are as even as the batch; the fullest rank waits for more than it sent.
    received = max(1.0, sizes.load(tensor, target.shards) / sizes.load(tensor, source.shards))
    local = received * sizes.elements(tensor, source) * element_bytes
    done: list[Move] = []
    for axis in kinds.pop("slice", []):
        local /= sizes.mesh.size(axis)
    for kind in ("reduce_scatter", "all_reduce", "all_to_all", "all_gather"):
        axes = tuple(kinds.get(kind, ()))
        if not axes:
            continue
        degree = 1
        for axis in axes:
            degree *= sizes.mesh.size(axis)
        full = local * degree if kind == "all_gather" else local
        done.append(Move(kind, axes, full))
        local = {"reduce_scatter": local / degree, "all_gather": full}.get(kind, local)
    return tuple(done)


def splits_experts(spec: ShardingSpec) -> bool:
    """Whether ranks have experts of their own."""
    return any(dim == "experts" for _, dim in spec.shards)


def gathered_whole(move: Move, copies: float, ranks: int, to_experts: bool) -> Move:
    """An exchange of tokens that have ``copies`` experts each, where all ranks of a group have all its tokens.

    They are gathered on their way to experts; what experts make of them is summed and scattered on its way back.
    Source: NVIDIA/Megatron-LM ``megatron/core/transformer/moe/token_dispatcher.py`` (``MoEAllGatherTokenDispatcher``);
    marin-community/marin ``lib/levanter/src/levanter/grug/_moe/ep_ring.py`` (``all_gather``, ``psum_scatter``).
    """
    if move.collective != "all_to_all":
        return move
    collective = "all_gather" if to_experts else "reduce_scatter"
    return Move(collective, move.axes, ranks * move.full_bytes / copies)


def narrowed(done: tuple[Move, ...], element_bytes: float) -> tuple[Move, ...]:
    """``done`` with what tensor ranks gather in 8 bits in place of ``element_bytes``."""
    return tuple(
        move._replace(full_bytes=move.full_bytes / element_bytes)
        if move.collective == "all_gather" and move.axes[-1] == "tensor"
        else move
        for move in done
    )
