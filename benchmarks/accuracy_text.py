"""The prose of docs/accuracy.md but for its `accuracy_history`; its tables are in `accuracy_document`."""

PREAMBLE = """\
# Accuracy

Predicted against measured, on runs that others published. Written by `python benchmarks/accuracy.py` from the rows in
`tests/published`, each with its source; do not edit. Errors are of step time, predicted / measured - 1; "median" and
"90th percentile" are of their absolute values, "bias" is the median with its sign: below zero, we predict too little.
A tenth of the runs of one configuration that was published twice differs by 10 % or more.

## Fit and report

Constants were fitted on these series, taken whole: {fit}. Of {interval} come the interval, overlap, passes and growth
with slices of the jax-xla stack, and of the mixtures of these, all of each, only the interval of mixtures: {moved}.
They are every second, by name, of the twenty series with mixtures that were in the report split until November 2026,
whatever their errors, and were seen there before; their figures of earlier evaluations below are those of the report
split of then. So is every second, by name, of the series transcribed fifth, of whose dense runs comes the interval of
dense models and nothing else: {moved_dense}. All others are the report split: no constant comes from them.

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
`host_collective`, `host_launch`, `host_part` (time in which Python issues work), `straggler`, `fragmentation`,
`uncertainty` and `unexplained`; of one network, `contention` and `ring_step`. `host_check` and `host_check_network`
(nanotron only) have the form and the size of PyTorch's checks of collectives under `TORCH_DISTRIBUTED_DEBUG=DETAIL`;
that runs had them on is inferred.

The column "constant MFU" is the usual rule of thumb: useful FLOPs over the median MFU of the device in the series of
our constants, times a pipeline bubble of (p - 1) / (m v).

## Step time

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
was fitted on them. The first 42 were compared when all else was in place (median error 14.9 %, 90th percentile 108 %)
and led to four things: ranks of experts are numbered without regard to context ranks, as in Megatron and torchtitan;
to recompute a layer of experts is not to recompute all of a layer; sequences of up to 256k on B200 had
FlashAttention-4; and a stage has its node's network card to itself while the others are silent. The same source's runs
on H200 were transcribed after that and evaluated once (+33 to +43 %).

What is left of these long sequences is attention, priced at the published rates of its kernels times what a device
sustains in training. The long sequences of llm-foundry and torchtitan bear that out for FlashAttention-2: whether
attention is 3 or 88 % of a step, errors stay the same, as if its rate were 0.98 to 1.01 (A100) and 0.93 to 0.95 (H100)
of the one priced. These runs do better: their source takes a step apart, in which FlashAttention-3 makes 521 TFLOP/s
(with the scores that its backward makes again) of 8,192 tokens, where 416 are priced, and 256k tokens take as long as
if it made 640. No rule by power explains both, as the slower kernel draws less. At published rates in full, Megatron's
runs on H100 would be as wrong in the fit split (4.5 to 4.1 % and 3.5 to 3.6 %), and NeMo's of the report split more so
(4.6 to 6.3 %); it stays. Blackwell has the rates that NVIDIA measured of cuDNN 9.22 (1,574 forward and 1,332 backward
of 8,192 tokens on GB200, 1,856 and 1,435 on GB300), NeMo's runs up to 25.11 those of 9.13.

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

An interval is `[t / (1 + u), t (1 + u)]`, and 0.25 s longer where PyTorch's FSDP2 runs: two sources of torchtitan have
short steps that take 0.2 to 0.35 s longer than their parts, whatever the precision and recomputation, and nothing says
why (0.25 to 0.35 s until FSDP2's copies and the update of before March 2025 were priced). `u` is for a source that was
never seen (`benchmarks/intervals.py`, [formulas.md](formulas.md#intervals)): the 80 % quantile of errors (beyond these
seconds) on runs of the fit split, each as if its series had been left out, every source weighing the same, and one that
was not seen as much as any. A source is a series, and all stacks have the width of all series, dense models and
mixtures of experts apart. The width of dense models came of the twelve series that constants were fitted on, which held
little more than half of the runs of the last three rounds, until six of the fifth were moved (0.14 to 0.19). The width
of mixtures came of three series, two of them of one maker, until those of ten more were moved to the fit split (0.26 to
0.42). As nothing was fitted on these ten, no source unseen is reckoned with: of each series of the fit split, 81 % is
inside the width of the others (85 % with one unseen, which would be 0.85, and hold 97 % of the report split). It is
wide as sources differ: in stacks, in how balanced experts are, and in what they print. Until the fourth round each
stack had the width of its own series, no source unseen (0.09 to 0.17), and of its first evaluation 46 % lay inside;
within 0.16 it would have been 48 %, or 62 % with every series weighing the same: three of its five sources are held,
nanotron of July 2024 and AXLearn are not.

"""

HELD = """\

With a series left out, each is judged by the width that all other series of the fit split give. "Between" is
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

* `fragmentation` and `communicator` of megatron and nemo were set by hand with MLPerf Llama3.1-405B, a report series,
  in view. Whether its runs fit is therefore no test.
* Live tensors: what is alive at which moment was worked out on the rows of both files, part by part, so that their
  errors are those of a description, not of a prediction. Of the first 31 tracked cases of our own nine led to a moment
  or a part (the first, `dp2-full-2048`, `dp4-full-512-ends`, `dp2x8-full-1024`, `full-1024-sgd`, the three
  `ends-accumulated`, `70b-3/dp32-every_second-1024-ends`); the others are a prediction. The last twelve of them were of
  kinds not seen before: until two of them led to anything, their median error was 0.4 % and the worst 8.9 %; of the
  last fourteen compiled cases 3.0 and 9.3 % of what was assigned. Three of few tokens and large layers were priced at
  +16.4, -0.8 and +5.0 % before any was compiled, and at +6.7, +1.0 and +1.7 % by what other cases led to. Of the first
  32 cases of transformers' modules five
  led to what norms keep and to a loss inside the model; the next 17 had then a median error of 6.9 % and a worst of
  33 %, and led to what activation functions, fused products, tied tables and a softmax in fp32 hold (one more,
  falcon-7b, was left out: its attention of one key head has no kernel on a CPU); the last ten, evaluated once after
  that, 0.0 and 55 %, GPT-2's softmax in 16 bits, and led to Gemma's norms alone. The bytes of collectives
  (`tests/planner/evaluation`) are held to PyTorch's and XLA's own counts without a constant.
* Then came kinds that none of these had: Muon, 8-bit AdamW, states in 16 bits, mixtures of experts, encoders, other
  activation functions. Their first evaluation, before anything followed from them, and what they are since:

  | kinds not seen before | n | median | largest | since: median | largest |
  | --- | ---: | ---: | ---: | ---: | ---: |
  | tracker, cases of our own | 7 | 3.3 % | 4.8 % | 0.1 % | 3.1 % |
  | tracker, modules of transformers | 14 | 8.4 % | 85 % | 0.6 % | 11 % |
  | XLA, shipped models | 8 | 5.0 % | 40 % | 1.6 % | 6.9 % |

  They led to eight parts: FSDP without resharding shards its only copy of 16-bit weights (+46 %); stacked experts are
  padded to whole ones where ranks are more (Mixtral over 32 and 64 ranks, -61 and -85 %), and what they make is kept to
  be weighed (Qwen3-30B, -9 %); Muon leaves embedding and head to AdamW; 8-bit states share a scale in blocks of 256;
  the root's gradients are whole before its weights go; under XLA gelu keeps four arrays (BERT and Phi-2, -33 and -40 %)
  and relu one byte of its input. What transformers' modules then were off by was read in their source: softmax and loss
  in 16 bits (GPT-2 +55 %, T5 +47 and +71 %, BERT +17 %), tangents of Gemma-2's soft caps and keys repeated for plain
  attention (-7.5 %), attention laid out again behind rotated parts of heads (Phi-3 and 4, Pythia, -2 to -4 %). T5 with
  full recomputation is now 11 % below the tracker, which holds 44 sums of gradients of positions, a sixth of its peak,
  that autograd frees without it. Not measured: Adafactor, of which neither PyTorch's nor transformers' version runs on
  FSDP2's shards.
* The last 44 tracked cases of our own, each priced before it was measured:

  | kinds not seen before | n | largest | since: largest |
  | --- | ---: | ---: | ---: |
  | one layer and a hundred, uneven rows, tied tables, clipping, fp16, copies of shards | 28 | 13.4 % | 0.7 % |
  | tensor ranks | 8 | 32 % | 1.0 % |
  | weights on the host | 5 | 63 % | 0.7 % |

  They led to moments of FSDP2's gathers and reductions, to the update's kernel as the run names it, to products
  stored before tensor ranks sum them, to embeddings' gradients that are whole on every tensor rank, and to sums that
  wait on the device where a stack does not reduce each micro-batch. The other three save activations on the host,
  each tensor for itself; layers under way, which are predicted, are 9 to 12 % more.
* Thirteen more were priced before they were measured: a number as `reshard_after_forward` (-33 to -3 %) and logits
  that are whole on every tensor rank (-77 to -1 %), which were named and not priced and are within 1.4 and 1.0 % now;
  weights in 16 bits reduced in fp32 (-0.4 %), every second layer recomputed (-0.0 %), every third (+4.9 %: the two
  last layers are gone when the first is computed again), sums of kept shards with copies (-0.1 %), adapters on copies
  of shards (-0.2 and +0.1 %). Of four with context ranks the largest was -9.7 %; they led to what a step of attention
  holds and to a copy of its merged result, and four more, priced after that, had -1.4 %. The one left (-5.4 %) led to
  attention beside the gradients of the layer behind it (-1.9 %; ten others nearer, every third layer at +4.9 %).
* Eighteen steps of mixtures, whose experts have 1 to 16 ranks, with tensor ranks and shared experts, as torchtitan has
  them: 2.7 % in the median before they led to anything, the largest -24.7 %, now 1.3 and -3.3 %. They led to what is
  kept and made to weigh, in fp32, what experts return; to experts as a unit of their own; to no exchange where experts
  have no ranks; to the moment at which the gradients of all experts are there. torchtitan 0.2.2 held those weighed
  copies on every tensor rank whole (-21 % at four of them; since pytorch/torchtitan@8bc267dea it does not).
* Six pipelines of 2 and 4 stages in PyTorch's runtime, tied tables and GPipe among them, were the first of their kind:
  -3 to -15.5 %, and +7 % once they had led to buffers for what every micro-batch brings, to results that are kept and
  to losses that wait. That one is GPipe, whose sums are made by the first backward, before which all activations are
  there: now -0.8 %; two more, priced by that rule before they were measured, -1.9 % (GPipe) and -0.1 %.
* Reserved memory under FSDP2 follows PyTorch's allocator, whose rules are replayed over recorded steps of whole models
  (`benchmarks/replaying.py`): within 3 % of the replays, of which `unplaced_arrays` is the median, whatever published
  runs would have. Compiled blocks keep what torch.compile keeps of a Llama block: no activated gate, and of listed
  products only those that the backward reads.
* Adapters (LoRA): of the last three of 15 tracked cases, priced before they were measured, one led to the gather of a
  head that is a unit of its own (-7.6 %). Of published peaks litgpt's beside 4 bits are off by -27 to -30 %, -5 to -8 %
  with what its bitsandbytes 0.42 does, which is counted by hand and not in the product: inputs of products stay with
  the graph (until 9e753741 of July 2024), that of the step before with its loss until the next one is there (2.6 GiB
  of the 3.9 that Llama-2-7B lacks); the head is widened twice, in fp16 and bf16 (0.5), and maxima are fp32 (0.3).

"""

FAR_OFF = """\
## What is far off, and why

* Runs of the sweep that stalled, up to eightyfold, are runs of another version than the one assumed: under that of its
  three versions that is nearest, 729 of its 787 runs are within 25 %, half of them within 4.7 %. As they are evaluated,
  74 take over 1.5 times as long as predicted. 51 of these are pipelines, which polled: twenty are 8B on 8 and 16 nodes
  without sharded states, with pipeline and data ranks and one sequence a micro-batch, all but one of such runs; of 1B
  and 80B with the same settings 2 of 10 are. That looks like one batch of jobs, not like a property of such runs, and
  is not modelled. Nor are checks of data-parallel collectives: over 64 nodes, runs without a pipeline whose collectives
  were checked take 0.5 s a step more, and those without sharded states up to 4 s.
* Tensor groups of 32 over 64 nodes without a pipeline in the sweep: 28 % too fast in the median. On 8 and 16 nodes they
  are off by -3 %, those of 16 by -1 %.
* Mixtures of experts on Blackwell: the same configuration became up to 1.8 times as fast between releases. Graphs of
  whole steps, the exchange beside compute, cuDNN's attention, and experts' layers as one kernel since 26.06 explain it
  for Qwen3. Not told apart: attention in MXFP8 (a quarter of that of DeepSeek-V3 on GB300), and what changed between
  26.04 and 26.04.01 on B300, where one configuration of Qwen3-235B went from 26.9 to 22.1 s within a month.
* DeepEP and HybridEP send a token once to each rank, not for each expert that it has there, by kernels that reach 0.62
  to 0.68 of the links (DeepEP's on Blackwell 0.37 to 0.38: its runs there -3 to 0 %). So priced, exchanges take what
  both measured (-10 to +3 % on H800, 0 to +14 % in racks; +30 % and -11 to +38 % before), while mixtures of
  Megatron-Bridge went from 8.5 to 10.4 % (over 8 ranks 3 % faster, over 64 slower) and notes on Primus from +70 to +56
  %. `routing_passes` stays: 5 to 7 are alike on what it was fitted on. With eight experts a token they are 28 passes
  over copies, where Megatron Core's source (NVIDIA/Megatron-LM@d98e8a64 `megatron/core/transformer/moe/moe_utils.py`)
  has 12 (fused) to 18: they hold more than is known. At 2.5 Megatron-Bridge's are off by 16 %, xtuner's by 12 for 19.
* Mixtures with routers left to themselves: -26 to -68 % on H100 in Megatron-Bridge but for Moonlight (0 %), the
  more the smaller the work of a rank. `--expert-imbalance` says what one knows of it; no default would be right.
* torchtitan's Qwen3-30B on eight H200 (-3 to -47 % compiled, memory -5 to +6 %): a router left to itself. Its
  selective policy kept results of attention alone, as parts of these layers were compiled by themselves, which these
  rows say (-14 to -55 and +20 to +22 % before that, and before its kernels were counted). They ran cuDNN's attention,
  too, which it asks for on every device since October 2025 (6a3a9da95): at that rate -22 to -52 %.
* DeepSeek-V3's own run is predicted to fill its devices to the last byte: DualPipe has two copies of every stage, which
  are not counted, and what its report says to be recomputed or kept in 8 bits is more than the row's words say.
* GPT-OSS before release 26.06, and in 26.06.01: a regression of its attention kernel (NVIDIA/cudnn-frontend issue 256),
  beside what kernels of their own do with its experts' biases, which is priced. In 26.06 and 26.08 its backward is in
  MXFP8, which takes windows of 128 for whole triangles (2.1 ms where bf16 takes 0.47; NVIDIA/cudnn-frontend@3929da2
  benchmark/sdpa_benchmark_training/results/gpt_oss/gb200): 5 % of its step.
* MegaScale-MoE's 352B on 240 to 1,440 H800: Megatron-LM -23 to -27 %, its own system -6 to -18 %. Neither micro-batch,
  virtual stages nor routing are printed.
* prime-rl's Qwen3-30B at 16,384 tokens: -42 to -46 %. Half of that is not the experts': its dense Qwen3-4B would be
  -24 % there (and +8 % at 65,536 tokens, as other long sequences are).
* The exchange of torchtitan itself takes a step on eight B200 half as long again as DeepEP's (3.30 and 2.22 s, of which
  passes over memory are a tenth: -25 %), and one of DeepSeek-V3 on 512 H100 1.7 times as long (-34 and -22 %).
* torchtitan asks for cuDNN's attention on Blackwell since May 2025 (pytorch/torchtitan@3b85aa31f), not for
  FlashAttention-2's, which its runs there are priced with. At cuDNN's rate they would all be faster by 12 to 31 % of
  their time (DeepEP's from 0 to -31 %): what they agree with now hides something that is not known. DeepEP's keep 13.7
  GiB for each sequence, 3.5 of which are predicted: every second layer recomputed, torchtitan's default, would fit that
  within 4 % (and their times -6 for +6 %), but their file recomputes all, which they are read by.
* torchtitan on eight B200, one sequence of 8,192 tokens each: -34 to -39 % in 16 and 8 bits alike. Its source says
  "power limited" (750 of 1,000 W) and nothing else that would slow all precisions by the same factor; the same software
  on four GB200 is off by -13 to +8 %. Half of the gap was attention (FlashAttention-2 there); we do not know the rest.
* 8B of torchao on eight H100, one sequence of 4,096 tokens each (-25 to -33 %): on the H100 of torchtitan's own tables,
  with HBM2e and a limit of 500 W, it would be -8 % and, in 8 bits, -18 %. The source names no more than eight H100.
* GPT3-175B of NeMo's launcher on A100 in September 2022 (-24 to -27 %): in July its page printed figures with the same
  degrees, micro-batches and recomputation, 29 % higher on 1,024 devices, which we miss by -3 to +3 %. We do not know
  what slowed it. The rows were first transcribed with the layout of
  2023, under which the page kept the figures of September.
* GPT3-126M under JAX on 64 H100 (JAX-Toolbox Pax, 54 and 62 ms, predicted 26): its source states neither recomputation
  nor the kernels of the loss. Full recomputation would add 5 ms, a loss kernel by kernel in fp32 6 ms; the rest, and
  why half a year of releases gained 12 %, we do not know.
* `elementwise_passes` of megatron (2.2) was fitted before the attention of Zero-bubble's runs was known to be several
  kernels. That series says little of it: 1.8 to 3.0 leave 3.3 to 4.1 % there (2.2: 3.9 %), so it stays.
* Long sequences of Llama-3.1-8B on eight H200 and B200 (stas00/ml-engineering): memory +10 to +19 %. The few tensors
  that they make are of the same sizes: 117.4 GiB are predicted to be alive of 262,144 tokens, and 124.5 were reserved.
  They were 129.4, and called impossible, until the gradients of Liger's gated activation lay in place.
* Llama-4 Scout of torchtitan, 10 sequences of 8,192 tokens a device and nothing recomputed, as its source says: inputs
  of its products alone would be 270 of 173 GiB. Impossible as printed is also one row of Llama-3-70B on 64 GB300
  (Megatron-Bridge 26.02.01, NVFP4): whole weights and gradients on every rank, which with a 64th of the states are 275
  of 268 GiB. Its recipe, and the same row of the releases around it, have four stages.
* Compiled TPU steps at the head: XLA's scheduler decides whether its gradient is made before the layers' backward or
  after it, and whether the gathered head is still there. Over 64 ranks, where that gradient is whole, libtpu 0.0.51
  made it at once and 0.0.52 makes it afterwards: one program of 8B has 7.57 and 6.65 GiB, predicted 7.53 and 6.71. What
  is left of the latter: 70B +4 %; context 8 by data 8, 32,768 tokens, +8 %; two layers of 8B on v5p +16 %.
* Compiled TPU steps that nearly fill the device: XLA then copies whole weights late, into what the step has left (ZeRO
  2, 1B of 16 layers on v5e: predicted 14.34 GiB, 11.86 compiled; for v5p, with room, 14.31). They fit as predicted.
* Compiled TPU steps of few tokens and large layers (7B with 2,048 tokens on a rank: +8 to +26 %; fp32: +39 %): a layer
  is priced with all its weights gathered and all its gradients beside; at XLA's peak neither is whole, and weights of
  fp32 jobs are gathered in 16 bits.
* Compiled TPU steps whose states are whole on every rank: these programs do not clip gradients, so that XLA steps the
  head as soon as its gradient is there; we keep it to the end, as a job that clips has to (1B over 16 ranks: +6 %).
* Holes: what XLA assigns is 0.7 % more than what is alive in the median of the 68 own cases where both are known, but
  18 to 58 % in four of eleven over 64 ranks, where a few buffers of a GiB and more make most of it. Own cases compiled
  before that was looked at (13) count holes as alive; those seven compiled again since have 0.1 to 1.4 % of holes.
* Crashed, called fitting: most of these 42 did not crash for memory. In the whole sweep 17 have a sibling (same tensor
  and pipeline degrees, same micro-batch) that keeps at least as much on a rank and ran; 11 more are 1B in 16 stages, of
  which one of 46 ran. The other 14 are predicted to take 3 to 79.6 of 80 GiB, eleven of them 55 and more: three of
  these at the limit, six too many in the version that keeps gathered inputs, which pipelines are taken not to have had.
* Peaks that the sweep prints are taken as those of the fullest device; they may be those of the first stage.
"""
