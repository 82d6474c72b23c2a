"""What is replayed from captured graphs, in the words of Megatron Core: an implementation and a scope."""

import re
from typing import NamedTuple, get_args

from cluster_specs.errors import InputError
from planner.plans import GraphPart

PARTS: tuple[GraphPart, ...] = get_args(GraphPart)

WHOLE_LAYERS: tuple[GraphPart, ...] = ("attn", "mlp", "moe")
"""What an empty scope means.

Source: NVIDIA/Megatron-LM@d98e8a64 ``megatron/core/transformer/transformer_layer.py``.
"""

OTHERS = ("mamba", "full_iteration", "full_iteration_inference")
"""Words of a scope that name no part of the layers of a transformer."""


class Graphs(NamedTuple):
    """Fields of a `Job`."""

    cuda_graphs: bool = False
    graph_parts: tuple[GraphPart, ...] = ()


def read_graphs(text: str) -> Graphs:
    """What ``full_iteration``, ``none``, or ``transformer_engine/[attn, moe_router]`` says.

    Raises ``InputError`` for an implementation or a part that is not known.
    """
    implementation, _, scope = text.lower().partition("/")
    words = re.findall(r"\w+", scope)
    known = implementation in ("none", "full_iteration", "local", "transformer_engine")
    if not known or not {*words} <= {*PARTS, *OTHERS, "none"}:
        raise InputError(
            f"cuda_graph {text!r} is not understood: use none, full_iteration, or transformer_engine/ with any of "
            f"{', '.join(PARTS)}"
        )
    if implementation == "none":
        return Graphs()
    if implementation == "full_iteration" or "full_iteration" in words:
        return Graphs(cuda_graphs=True)
    return Graphs(graph_parts=tuple(part for part in PARTS if part in words) if words else WHOLE_LAYERS)
