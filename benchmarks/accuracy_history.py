"""The part of docs/accuracy.md that says which rows were known when, and what was learnt from which."""

HISTORY = """\
### What was known when

* The report split is not blind: which effects the model has was decided with most of it in view. Its residuals led to
  these, each of which has a source outside the rows and no number taken from them: expert ranks that include tensor
  ranks and tokens sent once to a node (Megatron-MoE ModelZoo), gradients reduced after the backward, and in fp16 in
  fp16 jobs (Megatron-LM of 2019 to 2022), sums of input gradients beside those of weights (Megatron-LM since September
  2021: Korthikanti 2022), the type in which InternEvo reduces and the broadcasts that ZeRO-1 does not hide there, heads
  padded to the matrix unit of TPU v6e, logits that stay when activations are offloaded, exponentials of small attention
  heads (FlashAttention-3), the kernels of Megatron Core's loss where NeMo 1 is not told to fuse it.
* Seven groups of rows were new to those who made the model. The figures are those of their first evaluation.

  | rows | n | median | 90th percentile | inside interval |
  | --- | ---: | ---: | ---: | ---: |
  | stages for embedding and head alone (Zero-bubble, DGXC, MoE ModelZoo) | 12 | 6.7 % | 22 % (largest) | |
  | NeMo AutoModel, TinyLlama, torchtune, gpu-recipes NeMo, xtuner: dense | 9 | 9.8 % | 18 % | |
  | the same: mixtures of experts | 17 | 11 % | 27 % | |
  | the seven series "transcribed last": dense | 60 | 6.3 % | 13.2 % | 82 % |
  | the same: mixtures of experts | 16 | 30 % | 61 % | 44 % |
  | the five series "transcribed after those": dense | 33 | 6.4 % | 25 % | 79 % |
  | the six series "transcribed since": dense | 33 | 10.9 % | 24 % | 48 % |
  | the same: mixtures of experts | 2 | 65 % | 83 % | 0 % |
  | the five series "transcribed fourth": dense | 52 | 16.3 % | 43.5 % | 46 % |
  | the nine series "transcribed fourth": mixtures of experts on GPUs | 22 | 15 % | 44 % | 73 % |
  | the same: on TPUs | 6 | 28 % | 52 % (largest) | 33 % |
  | the same, a rate of FLOPs alone: on GPUs | 9 | 4.5 % | 23 % (largest) | |
  | the thirteen series "transcribed fifth": dense | 102 | 15.2 % | 46 % | 55 % |
  | the same: mixtures of experts | 2 | 28 % | 42 % (largest) | 50 % |

  Nothing changed for the first. After the second, what gpu-recipes calls NeMo is no longer taken for MaxText (-10, -3
  and +1 % to -15, -10 and -6 %); what says that it was not compiled is taken at its word (one of torchtune's, -9 to
  -5 %); and the passes of element-wise operators of torch-fsdp2 were fitted again, on torchtitan alone but with these
  in view (2.5 to 1.5: TinyLlama from 10 to 1 %, torchtune's from 14 to 9 %).
* The last seven are Aleph Alpha's layouts (every fourth that ran, every twelfth that crashed), FlagPerf, ms-swift,
  Megatron-Bridge's verification cards on H100, notes on Qwen3 in torchtitan, and the reports of DeepSeek-V3 and
  Nemotron-4; the intervals were in place before, too. 16 of 18 crashed runs were called out of memory. Of the mixtures
  twelve have routers that are neither trained nor balanced by force, where every expert is taken to get as many tokens:
  one of them is published both ways and takes 1.5 times as long so (Qwen3-30B-A3B on 16 H100, which also overlaps its
  exchange when balanced). After that three things changed that DeepSeek-V3 showed, on 1,024 H100 from +54 to +22, +9
  and -2 %: to recompute a mixture's dense layers and latent projections is little; where layers do not divide, Megatron
  Bridge's stages are full but for the last, which has the head; and its experts are in groups, of which a token may use
  half (arXiv:2412.19437).
* The five after those are OLMo-core's and Fast-LLM's own figures, NeMo's launcher as of July 2022, PaLM, and AWS's
  tables of Trainium, a device of which no rate was fitted or measured (median 19 %; -28 to +53 %). What they do not
  print is settled by a configuration of the same commit, or open. After them the reading of twelve rows of NeMo's
  launcher was mended (see the end), and a fit series, DGXC's, led to three things without a fit: what tensor ranks
  gather and sum for experts is exposed, JAX on GPUs waits and overlaps as other stacks do there, not as on TPUs, and
  MaxText's recipe keeps the products of attention. Trainium's runs were first JAX's here; when what XLA makes of ZeRO-1
  was seen to sum gradients whole, they got torch_xla's, which scatters them.
* The six since are MLPerf's GPT-3 175B (21 of the 33, on 64 to 11,616 H100 and 64 B200, in four releases of NeMo),
  llm.c, Megatron-LLaMA, IBM's float8 on torchtitan, JAX-Toolbox's MaxText, and notes on Primus; their bias was +9.7
  %. MLPerf's runs of September 2023 were off by -4, +10 and +24 % with 128, 16 and 8 micro-batches, which led to one
  thing: ranks of interleaved pipelines reduce and gather their weights beside whole turns of their other stages, and
  what is hidden slows the compute beside it, as it did under FSDP already (all three -6 %; the report split of
  quality A without these rows: 6.5 to 5.6 %). Up to 4.0 they are not told to fuse the loss, which they were taken to
  (6.0 to 5.6 %). What is left there are releases: one configuration took 21 % less time after 17 months (12.1, 11.1,
  9.8 and 9.5 s), of which micro-batches of two sequences explain a part.
* The dense ones transcribed fourth are AXLearn's step times on TPU v4 to v6e and H100, KempnerForge's on H200,
  prime-rl's on B200, H100, H200 and A6000, runs of nanotron on H100 in July 2024, and tensor ranks by `shard_map` on
  TPU v2 and v3; their bias was -15 %. What AXLearn and KempnerForge ran was first read in their code of today. In
  that of the commits that printed the figures AXLearn had no flash attention before June 2024, other meshes, and kept
  other tensors; KempnerForge's weights and states are in 16 bits, and its PyTorch takes cuDNN's attention. Read so,
  with one row more, all 53 have 15 % (90th percentile 36 %, 58 % inside the intervals of then), AXLearn's 24 to 17 %,
  KempnerForge's 12 to 9 %. Three things followed: scores of plain attention, which no list of kept results names, are
  made again (eleven of AXLearn's runs had been called impossible; 17 to 12 %), products with rows that are not
  multiples of 16 bytes leave Hopper's own kernels (m87-labs/kestrel pull request 143; nanotron's 50,257 words are
  odd: 27 to 21 %), and Megatron's tables are padded to multiples of 128, with which the host's time of the deepspeed
  stack was fitted again (72 to 75 us; vTrain 4.2 to 3.9 %). What is left: were an odd row to leave 0.15 of the rate
  in place of the 0.28 measured at 8 bytes, all of nanotron's runs on one node would be within 7 %, but no measurement
  of a product says so; on two nodes its pipelines are off by -32 to -70 %, which none of the sweep's three versions
  explains. AXLearn's 70B on v6e was off by -21 and -24 %, which led to sums of gradients that nothing runs beside in
  compiled programs for TPU slices (-5 and -8 %; its 70B on v5e from +4 to +15 %); on 512 H100 in June 2024 it is by
  -20 %. It printed 1.78 s of 7B on 256 H100 in September 2024 and 1.4 s in July 2025 (1.68 s predicted for both):
  releases alone differ by a quarter.
* The mixtures transcribed fourth are tables of MegaScale-MoE and of parallel folding, DeepEP in a fork of torchtitan,
  prime-rl's baselines, two issues, and MaxText's recipes for three kinds of TPU. Folding's (64 to 256 H100, tokens
  dropped) are off by -1 to +7 % but for a model of 64 narrow experts (+19 and -23 %). On TPUs, where no mixture was
  in a fit, all were too fast (-14 to -52 %), which led to three things without one: megablox computes a tile once for
  every group in it, MaxText pads experts to their capacity and reaches it by products with masks, and what a window
  leaves of a block of keys is computed as the whole block. Its Mixtral-8x7B went from -30 to -14 %, DeepSeek-V3,
  Llama-4's Scout and Maverick, Qwen3-235B and GPT-OSS from -28, -14, -23, -28 and -52 to -21, -11, -21, -25 and -46
  %, and Mixtral-8x22B, which had been there, from -19 to 0 %. Three on TPU7x are not evaluated, as the bandwidth to
  its host is not known. `benchmarks/mixtures.py` takes the time of every mixture apart.
* The dense ones transcribed fifth are xtuner's and YaFSDP's tables, torchprime on TPU v6e, ATorch's example,
  FlashAttention's training scripts, issues on TransformerEngine, lightning-thunder's rows of PyTorch, a comparison in
  accelerate, torchtitan's Qwen3-32B, TRL at a million tokens, and Levanter on TPU v3; the two mixtures are TRL's and
  one in an issue of PithTrain. Their bias was -9 %. Four things followed: runs by sizes may normalise queries and
  keys, and Qwen3, Gemma 3 and OLMo 2 are known to (the report split's series: 9.5 to 8.9 %); ranks with all experts
  keep no exchange that they never make (PithTrain's live tensors, 489 to 118 GiB of 142 reserved); ATorch's FSDP is
  that of eager models (-8 to -1 %); and PyTorch/XLA's flash attention is not splash attention (torchprime's 18 to 11
  %). Two were tried and left: a clock that falls less under attention, as it keeps less of the matrix units busy (with
  the cube root of that TRL's 17 to 6 %, ml-engineering's on H200 37 to 29 %, the median over the report split's series
  8.6 to 8.2 %, but llm-foundry's on A100, of the fit split, 2 and 4 to 10 %), and cuDNN's attention on B200, which
  torchtitan has preferred since May 2025 (NousResearch's -3 to -36 %). What is left: YaFSDP's runs take twice as long
  as predicted where a device has 2,048 tokens (-45 to -49 %; with 8,192 -10 %), on links not stated; MI300X under
  TransformerEngine of October 2024 is off by -24 to -55 %, though its attention has since had the rates measured on it
  (-29 to -55 % before), H100 and H200 in the same issues by -31 to +7 %; torchprime's 405B, whose tensor ranks are
  squares of chips that share what layers hand on, by -26 and -28 %; and live tensors of ATorch's FSDP by -47 to -62 %:
  its script runs fp32 weights under autocast, so that layers hand on fp32, and by `use_cache`, which transformers turns
  off under its own checkpointing only, keeps every layer's keys and values, the last step's too. With the four all 102
  have 14 % (90th percentile 44 %, 58 % inside the intervals of then).
* Once the 20 runs of maxtext-synthetic with tensor ranks (fit split) were read as one micro-batch each, 14 would
  not have fitted, had their tensor ranks not shared what layers hand on, which MaxText's do. `overlap_tensor` of
  jax-xla was fitted on them again (0.9 to 0.6: their median from 12 to 5 %); of the three runs with tensor ranks on
  TPUs in the report split it went from 6.7 to 2.4 %.
* InternEvo was in the first fit of the A100's rate; it has been fitted again without it, and once more when checkpoints
  that do not stop early were priced as they are (runs of the fit split with full recomputation: +3 to +7 %). Of 0.74 to
  0.88, 0.82 then had the least mean over fit series of their median errors (4.0 %; 0.80 and 0.84: 4.5 %); of 0.74 to
  0.95 on V100 0.86 (5.1 %; 0.84 and 0.88: 6.7 and 5.5 %, the 0.80 of before 10.4 %). The host's time of deepspeed went
  from 75 to 72 us (vTrain 5.5 to 4.1 %). Runs of the report split on A100 that recompute nothing under Megatron got
  4 % too fast by it (InternEvo -4 to -8 %), most of PyTorch's stacks 2 to 5 % nearer.

"""
