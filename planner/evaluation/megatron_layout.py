"""Megatron-LM's ``--pipeline-model-parallel-layout``: which layers run on which (virtual) stage, as a string.

Stages are separated by ``|``; ``E`` is the embedding, ``t`` a decoder layer, ``m`` a module of multi-token
prediction, ``L`` the loss; ``t*3`` repeats, and ``(...)*n`` repeats a group. Commas may stand between letters.

Models of unlike layers have ``--hybrid-layer-pattern`` in its place, with a letter for each layer and the same ``|``.

Source: Megatron-LM d98e8a6, megatron/core/transformer/pipeline_parallel_layer_layout.py and
megatron/core/models/hybrid/hybrid_layer_allocation.py.
"""

import re
from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise

from planner.errors import InputError
from planner.evaluation.cuts import sizes_of

EMBEDDING, LAYER, PREDICTION, LOSS = "E", "t", "m", "L"

MOST_LAYERS = 100_000
"""Longer layouts are taken for mistakes."""


def write_layout(cuts: Sequence[int], predictions: int = 0) -> str:
    """Layout of stages cut at ``cuts``; the last one also holds ``predictions`` modules and the loss."""
    sizes = sizes_of(cuts)
    rows = [_repeat(LAYER, size) for size in sizes]
    rows[0] = EMBEDDING + rows[0]
    rows[-1] += _repeat(PREDICTION, predictions) + LOSS
    pieces = []
    for row, same in groupby(rows):
        count = len(list(same))
        pieces.append(f"({row}|)*{count}" if count > 1 else f"{row}|")
    return "".join(pieces).removesuffix("|")


def _repeat(letter: str, count: int) -> str:
    return letter if count == 1 else f"{letter}*{count}" if count else ""


def read_layout(text: str) -> tuple[int, ...]:
    """Boundaries of the stages in layers.

    Raises ``InputError`` for an unknown letter, unbalanced parentheses, or a layout that does not begin with the
    embedding and end with the loss.
    """
    rows = _expand(text.replace(",", "").replace(" ", "")).split("|")
    flat = "".join(rows)
    if not re.fullmatch(f"{EMBEDDING}{LAYER}*{PREDICTION}*{LOSS}", flat):
        raise InputError(
            f"pipeline layout {text!r} must be one E, the layers t, modules m and one L, in stages split by |"
        )
    cuts = [0]
    for row in rows:
        cuts.append(cuts[-1] + row.count(LAYER))
    return tuple(cuts)


def write_pattern(letters: str, cuts: Sequence[int]) -> str:
    """Pattern of layers ``letters`` in stages cut at ``cuts``."""
    return "|".join(letters[first:last] for first, last in pairwise(cuts))


def read_pattern(text: str) -> tuple[int, ...]:
    """Boundaries in layers of a pattern's stages; modules of multi-token prediction, after ``/``, are left out."""
    stages = text.partition("/")[0].split("|")
    return tuple(accumulate(map(len, stages), initial=0))


def _expand(text: str) -> str:
    """``text`` without repetitions, innermost groups first."""
    group = re.compile(r"\(([^()]*)\)(?:\*(\d+))?|([A-Za-z])\*(\d+)")
    while found := group.search(text):
        body, times = (found[1], found[2] or "1") if found[3] is None else (found[3], found[4])
        if len(text) + len(body) * int(times) > MOST_LAYERS:
            raise InputError(f"pipeline layout repeats {body!r} {times} times")
        text = text[: found.start()] + body * int(times) + text[found.end() :]
    return text
