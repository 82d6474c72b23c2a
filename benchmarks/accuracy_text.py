"""The prose of docs/accuracy.md but for its `accuracy_history`; its tables are in `accuracy_document`."""

PREAMBLE = """\
# Accuracy

Predicted against measured, on runs that others published. Written by `python benchmarks/accuracy.py` from the rows in
`tests/published`, each with its source; do not edit. Errors are of step time, predicted / measured - 1; "median" and
"90th percentile" are of their absolute values, "bias" is the median with its sign: below zero, we predict too little.
A tenth of the runs of one configuration that was published twice differs by 10 % or more.

"""

SHORT = """
Of the report split {count} runs are one campaign, mixtures over EFA of AWS, which take over twice what is predicted;
why is known of a small part. Without them its runs of quality A are at {median} in the median and {p90} at the 90th
percentile.

A source that nobody had seen before was priced fifteen times, and mostly we were further off than on what we had seen:
dense models 4 to 26 % in the median (4 % the last time), mixtures 11 to 65 % (19 % the last time), mostly as steps
took longer ([what was known when](#what-was-known-when)). The intervals that are printed are for such a source.
"""

SPLIT = """\
## What was fitted on what

* Constants: {fit}, taken whole.
* The interval, overlap, passes and growth with slices of the jax-xla stack: {interval}.
* The interval of mixtures alone, from the mixtures of every second, by name, of the twenty series that had some and
were in the report split until November 2026, where they had been seen: {moved}.
* The interval of dense models alone, from the dense runs of every second, by name, of the series transcribed fifth:
{moved_dense}.
* No constant comes from any other: they are the report split.

"""

READING = """\
### How rows are read

* Where a run that ran would not fit, fields that its source leaves open are chosen so that it does, and listed with the
  row; whether such runs fit is no test.
* MaxText prints a batch for each device, tensor ranks too: where it gives the step's batch so, and no accumulation is
  printed, a data rank has that of all its tensor ranks as one micro-batch. Its first tables were run before it could
  accumulate (AI-Hypercomputer/maxtext@76bd53b MaxText/pyconfig.py), and had been read as 4 to 16 micro-batches.
* The rows of the sweep say that sequence parallelism was off. They are evaluated with it on: nanotron's benchmark
  script sets `tp_mode` REDUCE_SCATTER (huggingface/nanotron@2411b02 scripts/scaling_benchmarks.py), and peak memory at
  tensor degrees of 8 and more fits only so.
* The sweep ran over weeks and in versions that its rows do not name; three explain all of it. Runs without a pipeline
  kept the gathered inputs of tensor-parallel products (stack nanotron-keeping). Pipelines over nodes did not, and took
  as long as if every collective was checked, rank by rank (nanotron-checked). Those over 64 nodes, and of 32 tensor
  ranks, sleep 0.1 s at a time as well until metadata has arrived, as the version of December 2024 does
  (nanotron-polling): their 0.5 s (two stages) or 1 s (more) per micro-batch, whatever its size, say so. A tenth of the
  other pipelines show the same, and nothing tells which: the source lists runs by speed, without job or date.
* Of the sweep's runs without a pipeline a sixth do not hold gathered inputs. Where the printed peak memory tells so (26
  of 210 in the whole sweep, of which two wrongly) they are evaluated as nanotron-checked, and their times come out
  right: -65 to -80 % otherwise. No run's time is looked at for this, but its memory is, so that memory errors of the
  sweep are those of a description.

### Constants

Every fitted constant is per device, network or software stack and says "fitted on" in its `sources`; those "set by
hand" or "assumed" are just that. All have a physical meaning: `sustained`, `fp8` and `fp4` of a device (clocks under
its power limit; casts apart), and of a stack `elementwise_passes`, `routing_passes`, `overlap_tensor`, `host_operator`,
`host_collective`, `host_launch`, `host_part`, `host_hook` (time in which Python issues work), `straggler`,
`fragmentation`, `uncertainty` and `unexplained`; of one network, `contention` and `ring_step`. `host_check` and
`host_check_network` (nanotron only) have the form and the size of PyTorch's checks of collectives under
`TORCH_DISTRIBUTED_DEBUG=DETAIL`; that runs had them on is inferred.

The column "constant MFU" is the usual rule of thumb: useful FLOPs over the median MFU of the device in the series of
our constants, times a pipeline bubble of (p - 1) / (m v).
"""

USES = """\

### Where to trust it

The same runs by what their devices are used for most: the largest of the degrees (data, with its shards, context and
experts; tensor; pipeline), the earlier of these where two are equal; tensor degrees over nodes apart.

"""

RATES = """
### Runs that print a rate of FLOPs alone

Their step time follows from the rate and from what their source says it counts: of 533 runs that print both, it is
within 0.1 % of the printed one in the median and within 4 % for nine in ten. They are in no other table, and nothing
was fitted on them. The first 42 had 14.9 % (90th percentile 108 %) when they were first compared, which led to four
things: how ranks of experts are numbered beside context ranks, what recomputing a layer of experts leaves out,
FlashAttention-4 for sequences of up to 256k on B200, and that a stage has its node's network card to itself while the
others are silent.

Long sequences (ml-engineering) are left: attention is priced at the published rates of its kernels times what a device
sustains in training, which those of llm-foundry and torchtitan bear out whether attention is 3 or 88 % of a step, while
these take as long as if FlashAttention-3 made 640 TFLOP/s of 256k tokens, where it is priced with 416 of 8,192.

"""

LEFT_OUT = """\

### With a source left out

What to expect of a source that nothing has been fitted on: every series judged as if the rates of its devices had been
fitted on the other fit series alone (`left_out` in `benchmarks/judging.py`; to first order, by taking away the median
error of the others on that device). Constants of a stack that a single series shows (nanotron, deepspeed,
composer-2023) cannot be left out so.

"""

INTERVALS = """\

### Intervals

An interval is `[t / (1 + f), t (1 + s)]`, and 0.25 s longer where PyTorch's FSDP2 runs: two sources of torchtitan have
short steps that take 0.2 to 0.35 s longer than their parts, whatever the precision and recomputation, and nothing says
why. Its ends are for a source that was never seen (`benchmarks/intervals.py`, [formulas.md](formulas.md#intervals)): 90
% quantiles, on either side, of errors (beyond these seconds) on runs of the fit split, each as if its series had been
left out, every source weighing the same. Of dense models two sources that were not seen are reckoned with, as constants
were fitted on most of theirs; of mixtures none, as nothing was fitted on ten of their thirteen series. All stacks have
the widths of all series. It was one until the tenth round, of which half lay inside at first; the report split was seen
when two were chosen.

The ends have been two numbers since the sixth round, when six of its eight dense series took longer than predicted and
52 % of its runs lay inside an interval as wide on both sides (0.19; mixtures 0.42); the report split was seen when this
was chosen. When each stack had the width of its own series (0.09 to 0.17), 46 % of the fourth round's runs lay inside.

"""

HELD = """\

With a series left out, each is judged by the interval that all other series of the fit split give. "Between" is
what four fifths of series are off by at most in the median, "within" what four fifths of runs differ from the median of
theirs, every series weighing the same. Series that constants were fitted on differ less from each other than those that
they were not: the second line is the one to expect of a new source.

"""

ORDER = """\
Of {runs} runs of the sweep here {stalled} stalled: a micro-batch took them more than twice as long, over all stages,
as it took another run with the same tensor degree, as many stages or more, as many sequences in it or more, and at
most twice as many micro-batches (`benchmarks/stalls.py`; no model is asked). Groups are runs of one model on one
number of nodes. The last line is a model that is exact but for stalls: the order of the times themselves, with the
time of the run that it was compared with for a stalled one. Ours knows which version most runs had, and so most of the
stalls; for eight of the runs here it knows from their printed memory, which nobody has beforehand.

"""

ATTAINABLE = """\
What is attainable: two publications of one run differ by 4 % in the median, which alone would leave 0.94 to 1.00 in
every group. The rest is versions. Of {unknown} runs whose settings tell one of the sweep's versions but do not settle
it, {slower} took as long as the next slower one takes them (`benchmarks/versions.py`), 1B to 80B alike. "Attainable"
is the order of a model that is exact otherwise, over draws of which runs these are and of what a repeat differs by.
"Told" is ours under whichever of the two versions is nearer to what was measured: a description, not a prediction, of
what misorders our groups. No micro-batch, ZeRO stage or degree does.

"""

COLLECTIVES = """\
## Collectives

Times of collectives against measured tables, over all sizes from 8 bytes and over 4 to 128 MiB. Sources are on one
side as a whole: `launch`, `network_fill` and `switch_fill` of `cost_models/data/protocols.toml` and the latency of
`efa-v1` were fitted on those of aws-samples and stas00/ml-engineering, nothing on the others but the share of
bandwidth that Slingshot reaches. Which effects there are was chosen with all tables in view.

Every call of the tables of stas00 was issued from PyTorch while the clock ran, which is added as `host_collective` of
torch-fsdp2; those of the scaling book (H100, TPU) have about 0.1 ms of JAX in them, which is not. RCCL takes 1.1 ms
for an all-gather whatever its size up to 64 MiB; no term says so.

"""

OVER_NODES = """\
256 MiB over nodes of 8 H100 with EFA (vinjn/nanotron-ultrascale-playbook), predicted / measured - 1. `contention` and
`ring_step` of efa-v2 were fitted on them and on the sweep: steps of its rings take some 45 us beside their bytes here,
and as long in the sweep's tensor groups over 2 and 4 nodes, whatever the size. Trees share their routes; rings do not,
as the data groups of the sweep over 8 to 64 nodes reach the whole width.

"""

PEERS = """\
## Beside a peer

What [llm-analysis](https://github.com/cli99/llm-analysis) {version} says of the runs that it can take: dense models in
16 bits, without context parallelism, on devices that it knows. It divides FLOPs by peak rate and an efficiency:
"llm-analysis" is as it comes, with none; "with fitted efficiency" has the one per device that brings its median error
on the fit split of the published GPU runs to zero. Its answers are data, tests/published/peers.json, written by
`{command}`.

"""

CALCULON = """
[Calculon](https://github.com/calculon-ai/calculon) at {commit}, asked by `benchmarks/peer_calculon.py` with the
A100-80GB and H100 of its own `systems` (memory lifted), of the runs that it can take: dense models in 16 bits, stages
of equal layers, states sharded at most. It knows no vocabulary, gated layers (taken as half as wide again) or grouped
queries. Its published error on the whole of the A100 grid is 39 % on one node and 15 % on several.

"""

MEMORY = """\
## Memory

What is alive at which moment was worked out part by part on the rows of PyTorch's tracker and of XLA's compiler, so
that errors there are those of a description. What a kind that was new showed, priced before it was measured, is the
prediction:

| kinds not seen before | n | largest, first | now |
| --- | ---: | ---: | ---: |
| tracker: Muon, 8-bit AdamW, states in 16 bits, mixtures, encoders | 7 | 4.8 % | 3.1 % |
| tracker: the same as modules of transformers | 14 | 85 % | 11 % |
| XLA: shipped models of these kinds | 8 | 40 % | 6.9 % |
| tracker: one layer and a hundred, uneven rows, tied tables, clipping, fp16, copies of shards | 28 | 13.4 % | 0.7 % |
| tracker: tensor ranks | 8 | 32 % | 1.0 % |
| tracker: weights on the host | 5 | 63 % | 0.7 % |
| tracker: a number as `reshard_after_forward`, whole logits, parts recomputed, sums kept | 13 | 77 % | 4.9 % |
| tracker: context ranks | 4 | 9.7 % | 1.9 % |
| tracker: expert ranks of 1 to 16, with tensor ranks and shared experts | 18 | 24.7 % | 3.3 % |
| tracker: pipelines of 2 and 4 stages | 8 | 15.5 % | 1.9 % |
| tracker: adapters | 3 | 7.6 % | 0.4 % |
| tracker: replicas under DDP | 4 | 20 % | 1.3 % |
| tracker: attention, LoRA and other kinds that meet | 19 | 5.1 % | 3.2 % |
| XLA: few tokens and large layers | 4 | 16.4 % | 6.7 % |
| XLA: context ranks, many tensor ranks, Qwen, Llama 2 | 16 | 26 % | 22 % |

* `fragmentation` and `communicator` of megatron and nemo were set by hand with MLPerf Llama3.1-405B, a report series,
  in view. Whether its runs fit is therefore no test.
* T5 with full recomputation is 11 % below the tracker, which holds 44 sums of gradients of positions, a sixth of its
  peak, that autograd frees without it. Adafactor is not measured: neither PyTorch's nor transformers' runs on FSDP2's
  shards. falcon-7b was left out, as its attention of one key head has no kernel on a CPU.
* Reserved memory under FSDP2 follows PyTorch's allocator, whose rules are replayed over recorded steps of whole models
  (`benchmarks/replaying.py`): within 3 % of the replays, of which `unplaced_arrays` is the median, whatever published
  runs would have.
* Bytes of collectives are held to PyTorch's and XLA's own counts without a constant: [communication](communication.md).

"""

MEMORY_BY_SERIES = """
Peaks of the twelfth and thirteenth round, by series; a kind that nobody had looked at before is further off than those
above.

"""

FAR_OFF = """\
## What is far off, and why

Step time, dense:

* **Long sequences on Hopper** (TRL +9 %, ml-engineering +37 %): attention, see above. A clock that falls less under
  attention would explain them, but not the rest
  ([decision 11](decisions/0011-one-share-for-products-and-attention.md)).
* **YaFSDP on A100** with 2,048 tokens a device: -40 to -46 % (with 8,192 -4 %), on links that are not stated; 400
  Gb/s a node would explain all sizes.
* **MI300X under TransformerEngine** of October 2024: -23 to -50 %, H100 and H200 in the same issues -19 to +8 %. Its
  rates are those of 2025 and 2026. Of then the issues print 487 to 546 TFLOP/s of two products in 16 bits, where later
  libraries have 590 to 620, and 207 of a layer in 8 bits; how others did is not said: nothing is priced from it.
* **MI355X under Megatron-LM** in 2026: -28 to -44 %; on H100 and B200 the same stack is within 10 %. Rotary positions
  were not fused there. The row at -79 % ran kernels of MI300X only.
* **torchprime's 405B**: -26 and -28 %; its tensor ranks are squares of chips that share what layers hand on.
* **torchtitan on eight B200**: -33 to -38 % in 16 and 8 bits alike. Its source says "power limited"; the same software
  on GB200 is off by -13 to +8 %. It asks for cuDNN's attention there since May 2025 (pytorch/torchtitan@3b85aa31f), and
  is priced with FlashAttention-2, with which other runs of it agree: at cuDNN's rate all would be 12 to 31 % faster, so
  that something that is not known hides in what agrees.
* **torchao's 8B on eight H100** (-25 to -33 %): with the HBM2e and 500 W of torchtitan's own H100 -8 and -18 %.
* **nanotron of July 2024**: pipelines over two nodes -32 to -70 %, which no version of the sweep explains. Their
  author mended their throughput in October, by other versions of torch, triton and flash-attn and by linked libraries
  (huggingface/bench_cluster@f55b5e5). On one node within 7 % if an odd row left 0.15 of a product's rate in place of
  the 0.28 that is measured at 8 bytes.
* **NeMo's launcher of September 2022**, GPT3-175B: -21 to -25 %; in July it printed 29 % more with the same settings.
* **A100 under software of 2023 on**: IBM's 34B +16, nanochat +24, ms-swift, xtuner's and Kwai's 7B +2 to +16 %; all
  series on A100 -1 %. Shallow products, and recomputation that stops early, were a part of it.
* **Megatron-LM's unfused loss** is priced as its source has it, 38 bytes a logit forward (Megatron-LLaMA -6 to +4 %).
  Megatron-LM of before flash attention has the passes that its source counts (1.4) and attention as measured
  ([decision 14](decisions/0014-attention-of-megatron-as-measured.md)).
* **NVIDIA's BERT** in fp16 -9 %: time is missing, more than its source explains. **Adapters** that are small beside
  their host: Qwen's of 1.8B -16 to +1 %, a 70B beside 4 bits -27 %.
* **BloombergGPT** -37 %, **LLM-Shearing** -20 and -24 %, **GPT-2 XL under Lightning's DDP** -31 %, **StarCoder** -15 %:
  their scripts leave settings open, or do what nobody tuned. LLM-Shearing copies a causal mask from the host for every
  sequence, which is not priced; Lightning's links are not known.
* **The first FlashAttention** has the rates that the second's paper gives it, with which that paper's runs of 8,192
  tokens are within 2 %. FlashAttention's own training code, with 2,048, is +1 to +15 % with them, the most with heads
  of 64: its other kernels are priced too slow, or small heads.
* **DeepSpeed's ZeRO-3 on two ranks** with up to 1,024 tokens: -23 to -30 %. Its hooks take two to four times the host's
  time of an eager layer, by version; that of 0.12.6 is priced, measured on a CPU.
* **Lambda's 405B** with the update on the host: +39 %, as its processors were faster than the middling ones that are
  assumed.
* **MI325X in eager fp16** (milabench's BERT) -32 to -56 %: its rates are those of compiled programs and of
  TransformerEngine (MLPerf's adapters on it -1 and -3 %). **universal-llm-trainer** -38 to -64 %: adapters take longer
  in it than all weights. **TinyLlama on boards without NVLink**: -10 to -39 % on eight, links not stated; a 7B under
  DeepSpeed's ZeRO-2 -52 and -58 %.
* **TRL's Ulysses** on four H100: -79 % with 8,192 tokens to +42 % with 65,536, whose tokens a second are taken as those
  of all devices. A step takes 27 s on one device, 28 s on four, 33 and 39 s with four and eight times the tokens: 20 s
  are there whatever devices have to do, of which neither the script nor the host (data are streamed and cut into tokens
  as it runs, the update is the processors') is published; and the rest grows as tokens do, not as attention does.
* **DeepSpeed's tutorials of ZeRO** on V100: -49 and -63 %, with the update on the host +23 %. The 10B's log has 0.49 s
  forward (0.32 predicted), 2.0 s backward and 2.1 s for the optimizer, which then gathers 20 GB of weights on each
  device while nothing computes: 10 GB/s, one card for a node, where eight are assumed and none is stated.
* **Megatron-LM's golden values** on GB200 -20 and -26 %, on H100 and A100 -10 to -13 %: its tests ask for deterministic
  kernels and fuse no accumulation. On Blackwell cuDNN has no deterministic backward with dropout, so that they ran
  FlashAttention-2 (-44 and -46 % with cuDNN's rates); how much longer its deterministic kernels take is not known.
* **Releases**: MLPerf's GPT-3 became 21 % faster in 17 months, AXLearn's 7B on 256 H100 27 % in ten.
* **The sweep's stalled runs**, up to eightyfold, had another version than the one assumed: under that of its three
  versions that is nearest, 729 of its 787 runs are within 25 %, half of them within 4.7 %. 74 take over 1.5 times as
  long as predicted; 51 of these are pipelines, twenty of them all but one of a kind (8B on 8 and 16 nodes, states not
  sharded, one sequence a micro-batch), which looks like one batch of jobs. Over 64 nodes checked collectives of data
  ranks take 0.5 to 4 s a step more, and tensor groups of 32 are 28 % too fast.

Step time, mixtures of experts:

* **Routers left to themselves**: -26 to -68 % on H100 in Megatron-Bridge but for Moonlight (0 %), -3 to -47 % in
  torchtitan's Qwen3-30B: the more the smaller the work of a rank; one that is published both ways takes 1.5 times as
  long so. With random weights (`benchmarks/untrained_routers.py`: 128 experts, eight a token) later layers send nearly
  all tokens to the same few, and the fullest of 8, 16 and 32 ranks has 2, 2.8 and 4.5 times its share: as much as the
  worst of these runs would need, too much for the others. `--expert-imbalance` says what one knows of it; no default
  would be right.
* **Blackwell**: one configuration became up to 1.8 times as fast between releases. What kernels and graphs explain is
  priced; attention in MXFP8, and what took Qwen3-235B from 26.9 to 22.1 s within a month, are not told apart. GPT-OSS
  had a regression of its attention before 26.06 and in 26.06.01 (NVIDIA/cudnn-frontend issue 256), and in 26.06 and
  26.08 a backward in MXFP8 that takes windows of 128 for whole triangles: 5 % of its step.
* **Depth of products** is not what mixtures miss: a tile takes 1.2 us to fill on Hopper and nothing that was seen on
  Blackwell ([decision 12](decisions/0012-filling-of-tiles.md)), about a point of their error.
* **Exchanges**: DeepEP's and HybridEP's take what both measured (-10 to +14 %), with which Megatron-Bridge's mixtures
  are off by 10.4 %, notes on Primus by +61 %. `routing_passes` holds more than is known: 28 passes over copies with
  eight experts a token, where Megatron Core's source has 12 (fused) to 18 (NVIDIA/Megatron-LM@d98e8a64
  `megatron/core/transformer/moe/moe_utils.py`). torchtitan's own exchange takes half as long again as DeepEP's on eight
  B200, and 1.7 times as long on 512 H100.
* **MegaScale-MoE's 352B**: Megatron-LM -21 to -25 %, its own system -5 to -17 %. Neither micro-batch, virtual stages
  nor routing are printed.
* **prime-rl's Qwen3-30B** at 16,384 tokens: -37 to -38 %. With 65,536 its memory is 17 % above what compiled layers
  would have and 8 % above that of eager ones, which would be -28 to -30 %: PyTorch runs a layer that is recomputed as
  eager where any part of it cannot be compiled, and FlashAttention-3 could not until December 2025.
* **Marin's Grug**, a mixture of JAX on GPUs: within 15 % on a node of H100, -25 to +5 % on Blackwell, -44 to +6 % of
  its models of 1024 and 90B, -44 to -63 % on TPU v4. Levanter's loss alone is right (157.9 ms for 157.3 measured);
  XLA's sorts are not priced at their rate.
* **AWS's runs of Megatron-Bridge over EFA** (DeepSeek-V3, Kimi K2, Qwen3): -54 %. Four and eight stages agree on the
  time of a layer and leave none beside: a layer of Kimi takes 22 ms with one sequence over NCCL, 51 with four. That
  first floor is 1.5 to 1.7 times what the host is charged, which NVIDIA's own tests on a DGX H100 bear out (golden
  values of NVIDIA/Megatron-LM@core_v0.17.1: -7 to +7 % in five of seven mixtures; 1.6 times as long on a DGX A100).
  UCCL's Megatron over EFA (uccl-project/uccl@da914a20 `ep/bench/megatron`) is -17 % with NCCL, -23 % with DeepEP where
  NCCL's channels are limited, and -67 % where they are not, as in AWS's runs: then EFA collapses, it says. Not
  explained are NCCL's exchanges on B300, at 25 to 28 GB/s a device with four sequences (alone 94; on p5 as alone).
* **BioNeMo's Mixtral**: -9 to -55 %; eight expert ranks are slower in it than none, and its routing is real.
* **JaxPP on Grug**: -54 and -71 %; much of its plan is inferred. **Halo's GPT-OSS** with expert ranks -42 %, without
  them -2 to -10 %. **torchtitan in PithTrain's issue** +65 %: how long its documents are is not said.
* **MaxText on TPUs**: -11 to -46 % (GPT-OSS). Three runs on TPU7x are not evaluated: its link to the host is not known.

Memory:

* **ATorch's FSDP**: -33 to -45 %, and its steps +4 to +12 %. Its script runs fp32 weights under autocast, which is how
  they are read (weights of 16 bits: -47 to -62 and -2 to +6 %); keys and values that `use_cache` keeps of every layer
  are not counted.
* **litgpt beside 4 bits**: -3 to -21 % (14 runs), and -10 to -30 % before inputs that its bitsandbytes 0.42 kept of
  frozen products were counted. It holds them outside what autograd frees, so that those of the step before are there as
  well until its loss is replaced, which is not counted: how long its samples were is not said.
  Its small models on two devices +5 to +25 %: the longest sample is in the first micro-batch (`finetune/lora.py`), when
  there are no sums of gradients yet, and lengths of the others, which add to them, are not said.
* **BERT of 2020 to 2022** with four sequences: -20 to -24 % in transformers, and -34 to -41 % before its dropout was
  counted, which was written without these rows; with one, or recomputed, -2 to -6 %. Four runs of NVIDIA's own BERT
  that died are said to fit, with 10 and 11 of 16 GiB and 19 and 23 of 32; those of it whose batches fill their boards
  (Lambda's) are predicted with 82 to 96 % of these, but for A40.
* **Runs that died under DeepSpeed's ZeRO**: three of six are said to fit. One had cast all weights to fp32 before
  DeepSpeed took them, which is not priced.
* **DeepSpeed's optimizer on the host**: gradients' shards are there too (deepspeedai/DeepSpeed v0.19.8
  `deepspeed/runtime/zero/stage3.py`, `grad_partitions_flat_buffer`), and are left on the device here: ml-engineering's
  eight B200 are -8 to +2 % so, and would be -31 to -4 % without them. What takes as much instead is not known.
* **llama-cookbook's adapters**: -7 %: keys that `use_cache` kept, and freed blocks that other streams may still read.
* **Called impossible**: Llama-4 Scout of torchtitan, as printed (inputs of its products alone are 270 of 173 GiB); a
  row of Megatron-Bridge 26.02.01 with whole weights and gradients on every rank (its recipe has four stages); boards of
  48 GB, read as 4090s of 24 (Infinigence); Transformer Engine's tutorial, whose layers may be told of no first
  micro-batch, so that casts of weights go with the backward; torchtune's 8B on a 4090, whose states are paged to the
  host.
* **DeepSeek-V3's own run** fills its devices to the last byte: DualPipe's two copies of a stage are not counted, and
  what its report recomputes or keeps in 8 bits is more than the row's words say.
* **Compiled TPU steps**: XLA makes the head's whole gradient before or after the layers' backward, mostly whichever
  holds less (32 of 44 steps; on v5e with four tensor ranks not, -15 %); steps that nearly fill the device copy weights
  late (14.34 GiB predicted, 11.86 compiled); with few tokens and large layers neither all weights nor all
  gradients of a layer are whole at the peak (+8 to +26 %, fp32 +39 %); without clipping the head is stepped at once
  (+6 %). Holes are 0.7 % of what is alive in the median, 18 to 58 % in four of eleven over 64 ranks.
* **Crashed, called fitting**: of 39 runs of the sweep most did not crash for memory: 17 have a sibling that keeps as
  much and ran, 11 are 1B in 16 stages, of which one of 46 ran. The other 11 are predicted to take 3 to 78 of 79 GiB.
* Peaks that the sweep prints are taken as those of the fullest device; they may be those of the first stage.
"""
