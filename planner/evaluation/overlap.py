"""What shows of communication of weights that runs beside compute once a step."""

from collections.abc import Sequence


def left_over(moved: float, passes: Sequence[float], turn: int, share: float, slowdown: float) -> float:
    """What ``moved`` [s] adds to a step: gradients that a rank reduces in its last passes, or weights that it gathers.

    ``passes`` [s] are those of a micro-batch through each of the rank's v stages, b on average, and ``share`` is how
    much of them communication can run beside. Gradients of a stage are whole after its last backward. In looped
    pipelines they can then hide behind ``turn`` passes of every stage that comes after, and those of the stage that
    ends the step behind a part of its own last pass. With a v-th of ``moved`` for each stage there shows
    ``max(moved - share (1 + turn (v - 1)) b, moved / v - share b)``, at least 0; what does not show takes ``slowdown``
    of its time from the compute beside it. Weights hide behind the first forwards in the same way, read backwards.
    Source: NVIDIA/Megatron-LM megatron/core/pipeline_parallel/schedules.py,
    forward_backward_pipelining_with_interleaving: ``grad_sync_func`` is called for a model chunk after its last
    backward, ``param_sync_func`` for the next one before its first forward. The slowdown: arXiv:2507.03114.
    """
    stages, compute = len(passes), share * sum(passes)
    whole = moved - compute * (1 + turn * (stages - 1)) / stages
    shown = max(0.0, whole, (moved - compute) / stages)
    return shown + slowdown * (moved - shown)
