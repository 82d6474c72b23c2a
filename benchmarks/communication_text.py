"""What docs/communication.md says between its tables."""

HEAD = """# Communication

Bytes that a device sends in a training step: what `evaluate` prices, beside what XLA's compiler makes of the same
sharding for TPU slices. Written by `python benchmarks/communication.py` from `tests/published/xla_*.jsonl` (jax 0.10.2,
libtpu 0.0.52); do not edit. `tests/planner/evaluation/test_communication.py` holds what is said here.

## In short

A step agrees where each kind of collective is within 2 % of what was compiled, or within 0.2 % of all that is sent.

| whole steps | n | agree | error of all bytes, median | largest |
| --- | ---: | ---: | ---: | ---: |
"""

RULES = """
A case is named `model-layers/slice/ranks-recomputation-micro-batches`. Ranks are `fsdp16` (ZeRO-3 over 16), `tp8`
(tensor parallel with sequence parallel; `whole`: without), `cp4` (sequences split) or `dp16` (copies).

## What XLA makes of collectives

* **Sums and gathers beside long products.** *Rings*: of `n` ranks `n + 1` parts go round, where `n - 1` would do.
  Long is a product that contracts more than some 4,400 elements on v5e, 5,000 on v5p, 6,100 on v4, 10,000 on v6e
  (`planner.sharding.partitioning`). Gathers and gradients of weights contract tokens. The products of a gated MLP
  then have a sum each; the projections of attention, too short for rings, share one. Over four ranks gathers send no
  more than they need, and sums of one shape share the two parts too many: those in a layer's forward, and those in its
  backward, with what that makes again. Four ranks that are a square of a v4 or v5p slice have no rings.
* **Scatters along rows without a ring.** *Chunks*: padded to chunks of one size, of which those of all ranks and four
  more fill what a kernel has of memory on its chip (`planner.sharding.chunks`): 1 to 9 % more. Rows that are not a
  rank's own go back to its neighbours, as `p2p`.
* **Scatters along columns without a ring.** Summed whole, twice the bytes, where a rank's part is in 16 bits and an odd
  number of 128 columns (`8b-4/v5p:2x4x4/cp2-fsdp8x2`: 840 MiB more); so are looked-up tokens of one sequence.
* **What attention and MLP read together (`phi-2`).** Gathered once, as is the gradient of the sum that both are added
  to. Gradients by products without rings are summed together, but one by one once a ring has made a sum that they are
  added to (so they are in BERT, where residuals read what attention does).
* **Weights cut out of one array before products read them.** Their gradients are summed whole (`falcon-7b`: 1,151 MiB
  more; `pythia-12b`: 2,473). Programs that `verify` compiles multiply by the array and cut what that makes.
* **One array on several tensor ranks.** A rank has the columns of its own heads, queries, keys and values in turn.
  Were those of all heads to follow each other, XLA would deal them out again (`pythia-12b/v5p:2x2x4/tp4-fsdp4`:
  37,391 MiB). What the product makes is pinned by rank, too, or XLA gathers the whole array (`phi-4-14b`: 8.9 %
  more).
* **Scatters over a whole slice that is a square from 4x4, or has three dimensions.** All-reduces, twice the bytes,
  unless they are rings. So is that of keys or values of a split sequence, and of both where a rank's tokens of more
  than one head are more than a chunk (`planner.sharding.chunks`): over four ranks of v5e 3,656.
* **The one head of keys and values that several tensor ranks have.** Each makes it of its part of the sequence, all
  gather it. Its gradients are summed like those of split sequences, those of its weights over the tensor ranks as
  well.
* **Weights over all of 64 devices or more.** Gathered by sums of arrays that are zeros but for a rank's own part,
  twice the bytes: up to 16 MiB each, on v4 and v5p any.
* **Sequences that context and tensor axes both split.** XLA gathers whole activations for gradients of weights unless
  told how products read and leave arrays. Programs that `export` writes tell it. Without,
  `7b-4/v5e:4x4/cp2-tp2-fsdp4` sends 7,527 MiB, `8b-4/v5e:8x8/cp4-tp4-fsdp4` 7,989,
  `llama-3.2-3b/v5e:4x4/cp2-tp2-fsdp4` 59,520. A layer that recomputes anything, even if it keeps its products,
  gathers what they read once more, and keys and values too.
* **Fewer heads of keys and values than tensor ranks, but more than one, beside data ranks.** XLA exchanges gradients of
  what their projections read between data ranks, unless told that it is gathered. Programs that `export` writes tell
  it: `3b-4/v5e:4x4/tp4-fsdp4-none` sends 1,310 MiB, without 1,455. What is gathered stays until the backward, where
  no gradient of it has a ring.
* **As many tensor ranks with the same heads of keys and values as data ranks share states, or a multiple.** Parts of
  their weights change places before tensor ranks gather them, and parts of gradients, which data ranks sum, after
  (`planner.evaluation.syncing`). Where a rank has fewer tokens than half of the layer's width these ranks multiply by
  parts and sum keys and values, and gather whole weights for the gradient alone (`planner.evaluation.few_tokens`).
  Where all is recomputed the backward gathers them once more, which is not priced.
* **Queries of which each head is normed, beside tensor ranks.** Where they are made again, the backward gathers their
  projection twice: once to make them, once for the gradient.
* **Gradients over copies of states, or of shards.** Summed with every micro-batch.
* **ZeRO-1.** The same, and updated weights are gathered as they are stored, in fp32. Of several micro-batches the
  gradients of embedding and head are scattered, as their sums lie as the states do, and so they are where SGD reads
  them once (`zero1-sgd`).
* **ZeRO-2.** Weights are gathered as with ZeRO-1, gradients scattered as with ZeRO-3. Of tokens, looked up in whole
  tables, ranks exchange gradients.
* **Embedding.** Tokens are looked up in shards of the table and what is found is exchanged
  (`planner.evaluation.lookup`); the table is gathered where all ranks would gather more than it. Of a table in columns
  and rows XLA splits first what takes the smallest largest array (`planner.sharding.lookups`). Shards are columns:
  with rows `8b-8/v5e:4x4/fsdp16-full` sends 14,813 MiB and `8b-8/v5e:8x8/fsdp64-full` 21,248, but
  `1b-8/v5e:4x4/fsdp4x4-none`, with copies, 4,187. As many context ranks as copies are taken for these.
* **Positions added to tokens that tensor ranks split (`opt`).** What is looked up is scattered over these before it is
  exchanged, and exchanged between them, too. Ranks gather the positions of their own tokens, and sum no others.
* **Head.** Its gradients are summed in fp32. Of a table that is embedding and head those of each are summed by
  themselves.

## What is not priced

* `7bv-2/v5e:4x4/tp4-fsdp4` with a vocabulary of 1,024: tokens are split before columns and rows, beside tensor ranks.
* `1b-4/v6e:2x4/cp4-fsdp2`: chunks of the head's gradient are smaller (0.6 % less is sent).
* `olmo2-4`: norms over all heads, which tensor ranks split. Each exchanges heads for tokens and back, as OLMo-core has
  it; XLA does the first in fp32 and again for the gradient, and gathers more (7 % of all).
* `phi-4-14b/v5p:2x2x4/tp4-fsdp4`: ten heads of keys and values on four tensor ranks. Attention is whole on each, and
  the program sums what its kernel hands back over them, though they have the same (8 % of all).
* `bert-large/v5p:2x2x2/tp2-fsdp4`: data ranks that are a square beside tensor ranks have no rings either, and weights
  of queries, keys and values are gathered twice in a backward that makes all again.
* `t5-small`: layers that are no part of a loop are gathered once or twice, and have no rings.
* `t5-11b`: gradients of what an encoder hands on are summed whole.
"""

FIRST = """
## What was priced first

Before anyone had compiled them, and now: errors of all bytes, and of the kind that was furthest off. Programs with
sequences split twice pinned less when they were first compiled: `cp2-tp2-fsdp4` and `cp4-tp4-fsdp4` were -55 and -66 %
off, `llama-3.2-3b` -77 %. Whole models had been compiled before, for their memory, but what they send was not looked
at. Of `phi-4-14b/v6e` the compiler gathered tokens in place of the joined gate and up weights, as these have more
columns than a micro-batch has tokens, until programs pinned what such a product makes, as under tensor ranks: it sent
108,119 MiB, 29 % more than was priced. Of `v4:4x4x8/tp4-fsdp32` rings of what a layer makes again were taken to send
parts that are zeros of their own.

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

LAYERS = """
## Layers, case by case

Loops over layers and their backward. XLA's rings beside products count as the gathers and scatters that they are; `p2p`
is what they send beyond that.

"""

ALL = """
## Whole steps, case by case

With embedding, head, loss and norms.

"""

HELD_OUT = """
## Held out, case by case

Whole steps that were compiled only after communication was priced as above, before what they showed was: few layers,
and shipped models.

"""
