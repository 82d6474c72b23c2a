"""How long a step took, by what a source prints: a time, or a rate from which one follows."""

from cluster_specs.units import format_seconds
from planner.plans import Plan
from planner.runs.flop_rates import is_derived, step_time_of_rate
from planner.runs.record import RunFile

CONTRADICT = 0.1
"""Two figures of a run that are further apart than this share cannot be of the same steps."""


def measured_step_time(run: RunFile, plan: Plan) -> tuple[float | None, tuple[str, ...]]:
    """Seconds of one step, as printed or as they follow from a printed rate of tokens or FLOPs, and notes on how.

    What was computed from another figure counts where nothing else is there: it holds for one reading of the batch.
    """
    measured = run.measured
    if measured is None:
        return None, ()
    tokens = plan.job.global_batch * plan.job.seq_len
    gpus = run.hardware.n_gpus or plan.cluster.num_devices / (run.hardware.devices_per_chip or 1)
    of_all, of_one = measured.tokens_per_s, measured.tokens_per_s_per_gpu
    figures = {
        "step_time_s": measured.step_time_s,
        "tokens_per_s": of_all and tokens / of_all,
        "tokens_per_s_per_gpu": of_one and tokens / (of_one * gpus),
    }
    seconds = {name: value for name, value in figures.items() if value is not None}
    if seconds:
        taken = min(seconds, key=lambda name: is_derived(measured, name))
        return seconds[taken], _contradictions(seconds, taken, tokens)
    found = step_time_of_rate(run, plan, gpus)
    return (found[0], (found[1],)) if found else (None, ())


def _contradictions(seconds: dict[str, float], taken: str, tokens: int) -> tuple[str, ...]:
    """Figures that say another time of a step than the one that is compared, in sentences."""
    return tuple(
        f"{name} says {format_seconds(value)} a step of {tokens} tokens, which contradicts {taken}, "
        f"{format_seconds(seconds[taken])}: the latter is compared"
        for name, value in seconds.items()
        if abs(value / seconds[taken] - 1) > CONTRADICT
    )
