"""Mixtures of experts run by run: each predicted part beside the measured time, so that a residual points to one.

python benchmarks/mixtures.py

Parts are per cent of the measured time of a step; they add up to 100 and the error.
"""

from collections.abc import Iterator, Mapping

from judging import RUNS, TIMED, Judged, judge, printed_of

from planner.evaluation import evaluate

LEAST = 0.015
"""Share of the measured time from which on a part is printed."""


def shares(row: Judged) -> Mapping[str, float]:
    """Predicted parts over the measured time, the largest first."""
    assert row.plan is not None
    assert row.row.step_time_error is not None
    estimate = evaluate(row.plan)
    measured = estimate.step_time_s / (1 + row.row.step_time_error)
    parts = sorted(estimate.time.items(), key=lambda part: -part[1])
    return {name: seconds / measured for name, seconds in parts if seconds > LEAST * measured}


def degrees(row: Judged) -> str:
    """How a run is spread, in short."""
    assert row.plan is not None
    p, job = row.plan.plan, row.plan.job
    words = [f"{job.precision} tp{p.tensor} pp{p.pipeline}x{p.virtual_stages} cp{p.context} ep{p.expert}"]
    words += [f"mb{p.micro_batch}x{p.num_microbatches} {job.seq_len} {p.recompute} {job.token_exchange}"]
    words += [word for word, said in (("overlap", job.overlap_experts), ("graphs", job.cuda_graphs)) if said]
    return " ".join(words)


def lines() -> Iterator[str]:
    """One line for every mixture with a measured time."""
    rows = [row for name in RUNS for row in judge(name)[0] if row.row.step_time_error is not None]
    for row in sorted(rows, key=lambda row: (row.split, row.series, row.device)):
        if row.mixture and TIMED & printed_of(row.source):
            parts = ", ".join(f"{name} {share:.0%}" for name, share in shares(row).items())
            yield f"{row.row.step_time_error:+6.1%} {row.series}: {row.row.id}: {parts}; {degrees(row)}"


if __name__ == "__main__":
    print("\n".join(lines()))
