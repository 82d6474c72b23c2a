"""Bytes that compiled TPU steps send beside what is priced for the same sharding: writes docs/communication.md.

python benchmarks/communication.py            # write
python benchmarks/communication.py --check    # exit 1 if what is written is stale
"""

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import communication_text as text
from own_cases import PUBLISHED

from planner.evaluation import evaluate
from planner.runs.mapping import plan_from_run
from planner.runs.record import parse_run

DOCUMENT = PUBLISHED.parents[1] / "docs" / "communication.md"
AT_FIRST = PUBLISHED / "xla_first_priced.json"
"""Bytes by kind that were priced for a case when it was compiled, by its id; written once, by the code of then."""
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "p2p")
NAMES = {"send": "p2p"}
"""Our name of a kind -> XLA's."""
SMALL = 2**20
"""Bytes; kinds of which neither sends as much are left out."""
CLOSE, OF_ALL = 0.02, 0.002
"""How near a kind must be, of its own bytes or of all, to agree: as the tests have it."""
FILES = {
    "compiled first, which rules were learned from": ("xla_compiled.jsonl",),
    "held out when they were first priced": ("xla_held_out.jsonl",),
    "shipped models, whole": ("xla_models.jsonl", "xla_fresh.jsonl"),
    "other families, kept as priced before any was compiled": ("xla_families.jsonl",),
}


def priced(row: Mapping[str, Any], layers: int | None = None) -> Mapping[str, float]:
    """Bytes by kind; for a model of so many layers instead of its own."""
    sized = {**row["model"], "layers": layers} if layers else row["model"]
    return _priced(json.dumps({**row, "model": sized}))


@cache
def _priced(row: str) -> Mapping[str, float]:
    """Of a row as text; several tables show the same one."""
    found = evaluate(plan_from_run(parse_run(json.loads(row)))[0]).communication
    return {NAMES.get(kind, kind): sent for kind, sent in found.items()}


def of_layers(row: Mapping[str, Any]) -> dict[str, float]:
    """Bytes by kind that layers add: what twice as many send more."""
    once, twice = priced(row), priced(row, 2 * row["model"]["layers"])
    return {kind: total - once.get(kind, 0.0) for kind, total in twice.items()}


def table(rows: Sequence[Mapping[str, Any]], compiled: str) -> Iterator[str]:
    """Lines of one table; ``compiled`` is the field with the compiler's bytes."""
    yield "| case | kind | priced [MiB] | compiled [MiB] | priced / compiled - 1 |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for row in rows:
        ours = of_layers(row) if compiled.endswith("layers") else priced(row)
        theirs = row["measured"][compiled]
        pairs = [(kind, ours.get(kind, 0.0), theirs.get(kind, 0)) for kind in KINDS]
        pairs = [pair for pair in pairs if max(pair[1:]) >= SMALL]
        pairs.append(("**all**", sum(ours.values()), sum(theirs.values())))
        name = row["id"].removeprefix("xla-compiled/")
        for kind, us, them in pairs:
            yield f"| {name} | {kind} | {us / 2**20:,.0f} | {them / 2**20:,.0f} | {error(us, them)} |"
            name = ""


def agrees(ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    """Whether each kind is within 2 % of what is sent of it, or within 0.2 % of all."""
    least = OF_ALL * sum(theirs.values())
    return all(
        abs(ours.get(kind, 0.0) - theirs.get(kind, 0)) <= max(CLOSE * theirs.get(kind, 0), least)
        for kind in KINDS
    )


def in_short() -> Iterator[str]:
    """Lines of the first table: how many whole steps agree."""
    everything = {name: [row for file in files for row in rows_of(file)] for name, files in FILES.items()}
    everything["**all**"] = [row for rows in everything.values() for row in rows]
    for name, rows in everything.items():
        pairs = [(priced(row), row["measured"]["sent_bytes"]) for row in rows]
        off = [abs(sum(ours.values()) / sum(theirs.values()) - 1) for ours, theirs in pairs]
        agree = sum(agrees(*pair) for pair in pairs)
        yield f"| {name} | {len(rows)} | {agree} | {statistics.median(off):.1%} | {max(off):.1%} |".replace(
            "%", " %"
        )


def error(ours: float, theirs: float) -> str:
    """How far off, as shown; "" where one of the two is nothing."""
    return f"{ours / theirs - 1:+.1%}".replace("%", " %") if ours and theirs else ""


def compared(rows: Sequence[Mapping[str, Any]], first: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Lines of the table of what was priced at first, by case."""
    for row in (row for row in rows if row["id"] in first):
        then, now = first[row["id"]], priced(row)
        theirs = row["measured"]["sent_bytes"]
        off = max(KINDS, key=lambda kind: abs(then.get(kind, 0.0) - theirs.get(kind, 0)))
        totals = (error(sum(sent.values()), sum(theirs.values())) for sent in (then, now))
        ofs = (error(sent.get(off, 0.0), theirs.get(off, 0)) for sent in (then, now))
        yield f"| {' | '.join((row['id'].removeprefix('xla-compiled/'), *totals, off, *ofs))} |"


def exchanged(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of the table of experts."""
    for row in rows:
        ours, theirs = of_layers(row)["all_to_all"], row["measured"]["sent_bytes"]["all_to_all"]
        name = row["id"].removeprefix("xla-experts/")
        yield f"| {name} | {ours / 2**20:,.0f} | {theirs / 2**20:,.0f} | {error(ours, theirs)} |"


def rows_of(name: str) -> list[dict[str, Any]]:
    """Rows of a file that say what was sent."""
    rows = map(json.loads, (PUBLISHED / name).read_text().splitlines())
    return [row for row in rows if "sent_bytes" in row["measured"]]


def document() -> str:
    """All of docs/communication.md."""
    rows = rows_of("xla_compiled.jsonl")
    layers, everything = ("\n".join(table(rows, field)) for field in ("sent_bytes_of_layers", "sent_bytes"))
    experts = "\n".join(exchanged(rows_of("xla_experts.jsonl")))
    held_out = [row for files in list(FILES.values())[1:] for file in files for row in rows_of(file)]
    later = "\n".join(table(held_out, "sent_bytes"))
    first = "\n".join(compared([*rows, *held_out], json.loads(AT_FIRST.read_text())))
    parts = (
        (text.HEAD, "\n".join(in_short())),
        (text.RULES + text.FIRST, first),
        (text.EXPERTS, experts),
        (text.LAYERS, layers),
        (text.ALL, everything),
        (text.HELD_OUT, later),
    )
    return "".join(f"{said}{lines}\n" for said, lines in parts)


def main(arguments: Sequence[str]) -> int:
    """Write, or check."""
    written = document()
    if "--check" in arguments:
        stale = not DOCUMENT.exists() or DOCUMENT.read_text() != written
        print("stale: communication.md; run python benchmarks/communication.py" if stale else "up to date")
        return int(stale)
    DOCUMENT.write_text(written)
    print(written)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
