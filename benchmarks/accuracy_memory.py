"""The tables of memory in docs/accuracy.md."""

from collections.abc import Mapping

from accuracy_tables import error_cells, table
from accuracy_text import MEMORY_BY_SERIES
from judging import LIVE, RUNS

from planner.validation import ValidationReport

HEADER = ("n", "median", "90th percentile", "bias")

BY_SERIES = "runs_memory"
"""File of runs in tests/published whose peaks are listed by series."""

KINDS = {"tensor_memory": "live tensors", "memory": "as printed"}
"""What is compared -> what it is called."""


def memory_section(reports: Mapping[str, ValidationReport]) -> str:
    """Live tensors, driver's figure, and whether a run fits."""
    live = [
        [what, str(found.n), *error_cells(found)]
        for name, what in (LIVE | RUNS).items()
        if (found := reports[name].summary.tensor_memory).n
    ]
    driver = [
        [what, str(found.n), *error_cells(found)]
        for name, what in RUNS.items()
        if (found := reports[name].summary.memory).n
    ]
    fits = []
    for name, what in RUNS.items():
        found_fits = reports[name].summary.fits
        ran = f"{found_fits.ran_but_said_not_to_fit} of {found_fits.ran}"
        fits.append([what, ran, f"{found_fits.crashed_but_said_to_fit} of {found_fits.crashed}"])
    return (
        table(("live tensors", *HEADER), live)
        + "\n"
        + table(("as printed by the source", *HEADER), driver)
        + "\n"
        + table(("does it fit", "ran, called impossible", "crashed, called fitting"), fits)
        + MEMORY_BY_SERIES
        + series_table(reports[BY_SERIES])
    )


def series_table(report: ValidationReport) -> str:
    """Errors of peaks by series and by what is printed of them."""
    lines = [
        [f"{series}, {what}", str(found.n), *error_cells(found)]
        for series, quantities in sorted(report.summary.by["series"].items())
        for kind, what in KINDS.items()
        if (found := quantities[kind]).n
    ]
    return table(("twelfth and thirteenth round", *HEADER), lines)
