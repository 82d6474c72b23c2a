"""Bytes that compiled TPU steps send beside what is priced for the same sharding: writes docs/communication.md.

python benchmarks/communication.py            # write
python benchmarks/communication.py --check    # exit 1 if what is written is stale
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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

HEAD = """# Communication

Bytes that a device sends in a training step, by kind of collective: what `evaluate` prices beside what XLA's compiler
makes of the same sharding for TPU slices. Written by `python benchmarks/communication.py` from
`tests/published/xla_*.jsonl` (jax 0.10.2, libtpu 0.0.52); do not edit. A case is its model and layers, slice,
ranks (`fsdp16`: ZeRO-3 over 16; `tp8`: tensor parallel with sequence parallel, `whole`: without; `cp4`: sequences
split; `dp16`: copies), recomputation and micro-batches. `tests/planner/evaluation/test_communication.py` holds what is
said below.

## Layers

Loops over layers and their backward. XLA's rings beside products count as the gathers and scatters that they are; `p2p`
is what they send beyond that.

"""

AFTER = """
* **Rings.** Beside a product that is long enough for it, XLA passes parts of a sum or of a gathered array round, of `n`
  ranks `n + 1` parts where `n - 1` would do. Long enough is a product that contracts more than some 4,400 elements on
  TPU v5e, 5,000 on v5p, 6,100 on v4, 10,000 on v6e (`planner.sharding.partitioning`); gathers and gradients of weights
  contract tokens. The products of a gated MLP then have a sum each, where the projections of attention, too short for
  rings, share one. Over four ranks gathers send no more than they need, and sums of one shape in the forward or the
  backward of a layer share the two parts too many. Four ranks that are a square of a v4 or v5p slice have no rings.
* **Chunks.** What is scattered along rows without a ring is padded to chunks of one size, of which those of all ranks
  and four more fill what a kernel has of memory on its chip (`planner.sharding.chunks`): by 1 to 9 %, weights and
  activations of one sequence. Rows that are not a rank's own go back to its neighbours, as `p2p`; of cases that have
  less than 0.2 % of all of these, some count only the largest.
* **One input for two.** What attention and MLP read together (`phi-2`) is gathered once, as is the gradient of the sum
  that both are added to. Gradients by products without rings are summed together, but one by one once a ring has made
  a sum that they are added to.
* **One array for several weights.** Gradients are summed whole where weights are cut out of an array before products
  read them (`falcon-7b`: 1,151 MiB more; `pythia-12b`: 2,473). Programs that `verify` compiles multiply by the array
  and cut what that makes.
* **One array on several ranks.** Tensor ranks have the columns of their own heads, queries, keys and values, one after
  the other. Were those of all heads to follow each other, equal parts of the array would be nobody's heads, and XLA
  would deal them out again: `pythia-12b/v5p:2x2x4/tp4-fsdp4` sent 37,391 MiB so. What the product makes is pinned by
  rank, too: XLA gathered the whole array for two ranks of `phi-4-14b`, which sent 8.9 % more.
* **Whole sums.** Over all of a slice that is a square from 4x4, or has three dimensions, a reduce-scatter that is no
  ring is an all-reduce, twice the bytes. So is that of one of keys and values of a split sequence, and of both where
  each is more than 28 MiB (v6e: 48 MiB).
* **Lone heads.** Where tensor ranks outnumber the one head of keys and values, each makes these of its part of the
  sequence, all gather them, and their gradients are summed like those of split sequences, those of their weights over
  the tensor ranks as well.
* **Gathers by sums.** Over all of a slice of 64 devices or more, weights of up to 16 MiB, on v4 and v5p any, are
  gathered by sums of arrays that are zeros but for a rank's own part: twice the bytes.
* **Sequences split twice.** Where context and tensor axes both split the sequence, XLA gathers whole activations for
  the gradients of weights unless it is told how products read their inputs and leave their results. Programs that
  `export` writes tell it: without, `7b-4/v5e:4x4/cp2-tp2-fsdp4` sends 7,527 MiB, `8b-4/v5e:8x8/cp4-tp4-fsdp4` 7,989
  and `llama-3.2-3b/v5e:4x4/cp2-tp2-fsdp4` 59,520. A layer that recomputes anything, even if it keeps its products,
  gathers what they read once more, and keys and values too.
* **Copies.** Gradients are summed over copies of states, or of shards of them, with every micro-batch. With ZeRO-1 they
  are summed whole like that too, and the updated weights gathered as they are stored, in fp32; but of several
  micro-batches those of embedding and head are scattered, as their sums lie as the states do, and so they are where SGD
  reads them once (`zero1-sgd`). ZeRO-2 gathers weights
  as ZeRO-1 does and scatters gradients as ZeRO-3 does; of tokens, looked up in whole tables, ranks exchange gradients.

## All

With embedding, head, loss and norms. XLA looks tokens up in shards of the embedding table and exchanges what it finds
(`planner.evaluation.lookup`; the table is gathered where all ranks would gather more than it), and sums the head's
gradients in fp32. Of a table that both read it sums those of each by themselves. Shards are columns of the table: with
rows of it `8b-8/v5e:4x4/fsdp16-full` sends 14,813 MiB and `8b-8/v5e:8x8/fsdp64-full` 21,248, but
`1b-8/v5e:4x4/fsdp4x4-none`, with copies, 4,187.

"""

HELD_OUT = """
## Held out

Whole steps that were compiled only after communication was priced as above, before what they showed was: few layers,
and shipped models.

"""

FIRST = """
What was priced before anyone had compiled them, of these and of some above, and what is now: errors of all bytes, and
of the kind that was furthest off. Learned from them: that copies are summed with every micro-batch, which rings share
zeros (those whose parts have one shape), what is looked up beside tensor ranks with copies of shards or of tables that
the head shares, that gathers over whole slices are sums, that weights and activations of fp32 jobs are gathered in 16
bits, how ZeRO-1 sums gradients, which scatters are padded, and what tensor ranks exchange of a lone head and of
sequences that are split twice. Programs of the latter pinned less when they were first compiled: errors of
`cp2-tp2-fsdp4` and `cp4-tp4-fsdp4` were -55 % and -66 %, of `llama-3.2-3b` -77 %. Whole models
had been compiled before, for their memory, but what they send was not looked at.

* **Not priced.** Tensor ranks may sum whole what they look up though data ranks are fewer (`llama-2-13b`); may exchange
  tokens of one kind with their sums before all of these are summed (`opt`, with positions of its own); or gather the
  table whole (`llama-2-7b` on v6e). Where all is recomputed, the projection of queries is gathered once more
  (`qwen3-8b`, but not `8b-4`). Where heads of keys and values are fewer than tensor ranks but more than one, and data
  ranks are several (`3b-4`), gradients of what projections read change places between data ranks. Layers that are no
  part of a loop are gathered once or twice, and have no rings (`t5-small`). Gradients of what an encoder hands on are
  summed whole (`t5-11b`).

| case | all, first | all, now | kind | first | now |
| --- | ---: | ---: | --- | ---: | ---: |
"""

EXPERTS = """
## Experts

Tokens that ranks with experts exchange in one layer and its backward, where products with one-hot masks deal them out
as MaxText does (`benchmarks/compiling_experts.py`): there and back, and so do their gradients. Where four tensor ranks
split each expert (`ep4-tp4`), half as much is exchanged, and the rest gathered and scattered, which is not priced.

| case | priced [MiB] | compiled [MiB] | priced / compiled - 1 |
| --- | ---: | ---: | ---: |
"""


def priced(row: Mapping[str, Any], layers: int | None = None) -> Mapping[str, float]:
    """Bytes by kind; for a model of so many layers instead of its own."""
    sized = {**row["model"], "layers": layers} if layers else row["model"]
    found = evaluate(plan_from_run(parse_run({**row, "model": sized}))[0]).communication
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
    held_out = [*rows_of("xla_held_out.jsonl"), *rows_of("xla_models.jsonl")]
    later = "\n".join(table(held_out, "sent_bytes"))
    first = "\n".join(compared([*rows, *held_out], json.loads(AT_FIRST.read_text())))
    return f"{HEAD}{layers}\n{AFTER}{everything}\n{HELD_OUT}{later}\n{FIRST}{first}\n{EXPERTS}{experts}\n"


def main(arguments: Sequence[str]) -> int:
    """Write, or check."""
    text = document()
    if "--check" in arguments:
        stale = not DOCUMENT.exists() or DOCUMENT.read_text() != text
        print("stale: communication.md; run python benchmarks/communication.py" if stale else "up to date")
        return int(stale)
    DOCUMENT.write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
