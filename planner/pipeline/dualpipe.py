"""DualPipe and DualPipeV: forwards of one half of the work overlap with backwards of the other.

In DualPipe the halves are two directions through the pipeline, and every rank holds a copy of two stages. DualPipeV
cuts it in half: the other direction becomes the way back over the same ranks, and every stage exists once.

Source: github.com/deepseek-ai/DualPipe, README (eight steps); DeepSeek-V3, arXiv:2412.19437, section 3.2.1.
"""

from collections.abc import Sequence

from planner.pipeline.patterns import Phase, RankWriter, Track, v_shaped
from planner.pipeline.schedule import Schedule


def _phases(half: int, r: int, m: int) -> Sequence[Phase]:
    """What the rank r places from the outer end of ``half`` ranks runs, with m microbatches on each track."""
    # The last rank starts its steady state with a pair kept apart, which shortens the bubble.
    apart = 1 if r == half - 1 else 0
    # Of the 2(r+1) backwards that drain both stages, b first, the later half postpones its weights.
    return (
        (2 * (half - r - 1), "Fa"),
        (r + 1, "Fa Fb"),
        (half - r - 1, "Ib W Fb"),
        (apart, "Fa Bb Fb&Ba"),
        (m - 2 * half + r + 1 - apart, "Fa&Bb Fb&Ba"),
        (half - r - 1, "Bb Fb&Ba"),
        ((r + 1) // 2, "Bb Ba"),
        ((r + 1) % 2, "Bb Ia"),
        ((r + 1) // 2, "Ib Ia"),
        (half - r - 1, "W Ia"),
        (r + 1, "W"),
    )


def dualpipev(p: int, v: int, m: int) -> Schedule:
    """DualPipeV, for m >= 2p: forwards overlap with backwards of the rank's other stage."""
    return v_shaped(p, m, lambda r: _phases(p, r, m))


def dualpipe(p: int, v: int, m: int) -> Schedule:
    """DualPipe, for even p and m >= 2p: even microbatches start on the first rank, odd ones on the last."""
    writers = []
    for rank in range(p):
        down, up = Track(rank, 0, 2), Track(p - 1 - rank, 1, 2)
        writer = RankWriter(down, up) if rank < p // 2 else RankWriter(up, down)
        writer.write(_phases(p // 2, min(rank, p - 1 - rank), m // 2))
        writers.append(writer)
    return Schedule(
        ranks=tuple(tuple(writer.actions) for writer in writers),
        stage_to_rank=tuple(range(p)),
        num_microbatches=m,
        overlapped=frozenset(action for writer in writers for action in writer.overlapped),
        mirrored=frozenset(range(1, m, 2)),
    )
