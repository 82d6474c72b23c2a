"""Predicted against measured: prints the tables and writes docs/accuracy.md and tests/published/errors.json.

python benchmarks/accuracy.py            # write
python benchmarks/accuracy.py --check    # exit 1 if what is written is stale
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import collectives
from accuracy_document import document
from judging import LIVE, PUBLISHED, RUNS, Judged, grouped, judge, median_of_series

from planner.validation import ValidationReport, error_statistics

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
ERRORS = PUBLISHED / "errors.json"


def recorded(
    judged: Mapping[str, Sequence[Judged]], reports: Mapping[str, ValidationReport]
) -> dict[str, float]:
    """The figures that must not grow."""
    figures: dict[str, float] = {}
    for name in RUNS:
        for split, rows in grouped(judged[name], lambda r: r.split).items():
            errors = [r.row.step_time_error for r in rows if r.row.step_time_error is not None]
            found = error_statistics(errors)
            figures[f"step time, {name}, {split}, median"] = found.median_abs_error or 0.0
    everything = [row for name in RUNS for row in judged[name]]
    reported = [row for row in everything if row.split == "report"]
    figures["step time, report, median of series"] = median_of_series(reported)
    printed = [row for row in reported if row.printed]
    figures["step time, report, quality A, median of series"] = median_of_series(printed)
    of_printed = error_statistics([e for row in printed if (e := row.row.step_time_error) is not None])
    figures["step time, report, quality A, median"] = of_printed.median_abs_error or 0.0
    figures["step time, report, quality A, 90th percentile"] = of_printed.p90_abs_error or 0.0
    for name in LIVE:
        figures[f"live tensors, {name}, median"] = reports[name].summary.tensor_memory.median_abs_error or 0.0
    sweep = reports["sweep_h100"].summary
    figures["memory, sweep_h100, median"] = sweep.memory.median_abs_error or 0.0
    figures["memory, sweep_h100, ran but said not to fit"] = (
        sweep.fits.ran_but_said_not_to_fit / sweep.fits.ran
    )
    figures["memory, sweep_h100, crashed but said to fit"] = (
        sweep.fits.crashed_but_said_to_fit / sweep.fits.crashed
    )
    rounded = {name: round(value, 4) for name, value in figures.items()}
    return rounded | collectives.recorded(collectives.judge())


def written(
    judged: Mapping[str, Sequence[Judged]], reports: Mapping[str, ValidationReport]
) -> dict[Path, str]:
    """What the files should say."""
    figures = json.dumps(recorded(judged, reports), indent=1) + "\n"
    return {DOCUMENT: document(judged, reports), ERRORS: figures}


def main(arguments: Sequence[str]) -> int:
    """Measure, then write or check."""
    judged, reports = {}, {}
    for name in (*RUNS, *LIVE):
        judged[name], reports[name] = judge(name)
    texts = written(judged, reports)
    if "--check" in arguments:
        stale = [path.name for path, text in texts.items() if path.read_text() != text]
        print(f"stale: {', '.join(stale)}; run python benchmarks/accuracy.py" if stale else "up to date")
        return int(bool(stale))
    for path, text in texts.items():
        path.write_text(text)
    print(texts[DOCUMENT])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
