"""The part of docs/accuracy.md on the order of alternatives in the sweep."""

from collections.abc import Sequence

import stalls
import versions
from accuracy_tables import table
from accuracy_text import ATTAINABLE, ORDER
from judging import Judged


def rank_section(judged: Sequence[Judged]) -> str:
    """Order of alternatives in the sweep."""
    stalled, found = stalls.orders(judged)
    lines = [
        [whose, f"{o.median:.2f}", f"{o.least:.2f}", f"{o.best_among_three} of {o.groups}"]
        for whose, o in found.items()
    ]
    head = (
        "Spearman correlation of step times",
        "median of groups",
        "least",
        "fastest among our first three",
    )
    text = ORDER.format(stalled=stalled, runs=len(stalls.runs_of(judged))) + table(head, lines)
    groups = [
        [f"{model.removeprefix('nanotron-')} on {nodes}", *_places(everything), *_places(steady)]
        for (model, nodes), (everything, steady) in stalls.groups(judged).items()
    ]
    return text + "\n" + table(GROUP_HEADER, groups) + "\n" + attainable_section(judged)


def attainable_section(judged: Sequence[Judged]) -> str:
    """What order an exact model would find, and ours if it were told versions."""
    runs = versions.versions_of(judged)
    ours = stalls.groups(judged)
    unknown = sum(run.slower is not None for run in runs)
    text = ATTAINABLE.format(slower=sum(run.was_slower for run in runs), unknown=unknown)
    lines = [
        [
            f"{model.removeprefix('nanotron-')} on {nodes}",
            f"{ours[model, nodes][0].spearman:.2f}",
            *(f"{value:.2f}" for value in found),
        ]
        for (model, nodes), found in versions.attainable(runs).items()
    ]
    head = ("model and nodes", "ours", "attainable: median of draws", "a tenth below", "ours, told")
    return text + table(head, lines)


GROUP_HEADER = (
    "model and nodes", "runs", "Spearman", "place of the fastest", "did not stall", "Spearman", "place of the fastest",
)  # fmt: skip


def _places(group: stalls.Group) -> list[str]:
    correlation = "-" if group.spearman is None else f"{group.spearman:.2f}"
    return [str(group.runs), correlation, str(group.place)]
