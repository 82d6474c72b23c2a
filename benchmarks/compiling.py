"""Memory and collectives of training steps by XLA's own compiler for TPU slices, kept as data beside others' rows.

    pip install jax==0.10.2 libtpu==0.0.52 && python benchmarks/compiling.py  # write tests/published/xla_compiled.jsonl

A Llama of few layers is planned, exported to JAX and compiled ahead of time, as by `meshwright verify --with xla-tpu`:
no TPU is needed. What counts is the most that is alive of arguments, results and temporaries; what the compiler
assigned for them, with holes between; and the bytes that a device sends by each kind of collective, in all and in the
loops over layers. Nothing is fitted to them.

Source: `jax.stages.Compiled.memory_analysis`.
"""

import sys
from collections.abc import Mapping
from typing import Any

from compiling_families import FAMILIES
from own_cases import SIZES, measure_cases

from planner.runs.mapping import plan_from_run
from planner.verification.with_xla import compiled_step

# Activations whole on every tensor rank; states whole on every data rank; only the optimizer's split, or gradients too.
WHOLE: Mapping[str, Any] = {"sequence_parallel": False}
COPIES: Mapping[str, Any] = {"dp_shard": 1}
ZERO_1: Mapping[str, Any] = {"zero_stage": 1, "sharding": None}
ZERO_2: Mapping[str, Any] = {"zero_stage": 2, "sharding": None}
NARROW: Mapping[str, Any] = {"master_dtype": "bfloat16", "grad_dtype": "bfloat16"}

CASES: dict[str, Mapping[str, Any]] = {
    "8b-8/v5e:4x4/tp16-none": {"tp": 16, "seq": 8192},
    "8b-8/v5e:4x4/tp16-none-mb2": {"tp": 16, "seq": 8192, "grad_accum": 2},
    "8b-8/v5p:2x2x4/tp16-full-mb2": {"tp": 16, "seq": 8192, "grad_accum": 2, "recompute": "full"},
    "8b-8/v5e:4x4/tp8-fsdp2-none": {"tp": 8, "dp": 2, "seq": 4096},
    "8b-8/v5e:4x4/tp8-fsdp2-selective-mb4": {"tp": 8, "dp": 2, "seq": 4096, "grad_accum": 4, "recompute": "selective"},
    "8b-8/v5e:4x4/tp8-fsdp2-none-whole": {"tp": 8, "dp": 2, "seq": 4096, **WHOLE},
    "8b-8/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 4096},
    "8b-8/v5e:4x4/tp4-fsdp4-full-whole": {"tp": 4, "dp": 4, "seq": 4096, **WHOLE, "recompute": "full"},
    "8b-8/v5e:4x4/tp4-fsdp4-selective": {"tp": 4, "dp": 4, "seq": 4096, "recompute": "selective"},
    "8b-8/v5p:2x2x4/fsdp16-none": {"dp": 16, "seq": 4096},
    "8b-8/v5p:2x2x4/fsdp16-selective-mb2": {"dp": 16, "seq": 4096, "grad_accum": 2, "recompute": "selective"},
    "8b-8/v6e:4x4/fsdp16-full": {"dp": 16, "seq": 8192, "recompute": "full"},
    "8b-8/v5e:4x4/cp4-fsdp4-full": {"cp": 4, "dp": 4, "seq": 8192, "recompute": "full"},
    "8b-8/v5e:4x4/cp4-tp4-none": {"cp": 4, "tp": 4, "seq": 8192},
    "1b-8/v5e:4x4/cp2-fsdp8-none": {"cp": 2, "dp": 8, "seq": 4096},
    "1b-8/v5e:4x4/dp16-full": {"dp": 16, **COPIES, "seq": 2048, "recompute": "full"},
    "1b-8/v5e:4x4/dp16-selective-mb2": {"dp": 16, **COPIES, "seq": 2048, "recompute": "selective", "grad_accum": 2},
    "1b-8/v5e:4x4/fsdp4x4-none": {"dp": 16, "dp_shard": 4, "seq": 2048},
    "1b-8/v6e:4x4/tp4-fsdp4-none-plain": {"dp": 4, "tp": 4, "seq": 2048, "attention": "dot"},
    "8b-8/v5e:4x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 4096, "recompute": "full"},
    "8b-8/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 4096, "recompute": "full"},
    "8b-8/v5e:8x8/fsdp64-full": {"dp": 64, "seq": 4096, "recompute": "full"},
    "7b-8/v5e:4x4/fsdp16-full-plain": {"dp": 16, "seq": 2048, "recompute": "full", "attention": "dot"},
    "7b-8/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 2048, "recompute": "full", "micro_batch": 4},
    "7b-8/v5e:4x4/fsdp16-attention": {"dp": 16, "seq": 2048, "recompute": "attention", "micro_batch": 2},
    "7b-8/v5e:4x4/tp2-fsdp8-products": {"dp": 8, "tp": 2, "seq": 2048, "recompute": "dots_nobatch", "micro_batch": 2},
    "7b-8/v5e:4x4/tp16-full": {"tp": 16, "seq": 4096, "recompute": "full", "micro_batch": 4},
    "2b-8/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 4096, "recompute": "full"},
    "2b-8/v5p:2x2x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 4096},
    "2b-8/v6e:4x4/tp2-fsdp8-selective": {"tp": 2, "dp": 8, "seq": 4096, "recompute": "selective"},
    "70b-4/v5p:4x4x4/fsdp64-full": {"dp": 64, "seq": 8192, "recompute": "full"},
    "70b-4/v5p:4x4x4/tp8-fsdp8-selective": {"tp": 8, "dp": 8, "seq": 8192, "recompute": "selective"},
    "70b-8/v4:4x4x4/tp4-fsdp16-products": {"tp": 4, "dp": 16, "seq": 4096, "recompute": "dots_nobatch"},
    "8b-8/v5p:2x2x4/cp4-fsdp4-full": {"cp": 4, "dp": 4, "seq": 32768, "recompute": "full"},
    "8b-8/v5p:4x4x4/cp8-fsdp8-none": {"cp": 8, "dp": 8, "seq": 32768},
    "1b-8/v5p:2x2x4/fsdp16-none-fp32": {"dp": 16, "seq": 4096, "precision": "fp32"},
    "1b-16/v6e:4x4/fsdp16-full-mb8": {"dp": 16, "seq": 2048, "recompute": "full", "micro_batch": 8},
    "1b-16/v5e:4x4/fsdp4x4-full-mb4": {"dp": 16, "dp_shard": 4, "seq": 2048, "recompute": "full", "grad_accum": 4},
    "7b-8/v5p:2x2x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 4096, "micro_batch": 2},
    "7b-16/v6e:8x8/fsdp64-none": {"dp": 64, "seq": 4096},
    "7b-8/v5e:4x4/dp4-tp4-full": {"tp": 4, "dp": 4, **COPIES, "seq": 4096, "recompute": "full"},
}  # fmt: skip
"""Width and layers, slice, degrees, recomputation -> what differs from `USUAL`."""

HELD_OUT: dict[str, Mapping[str, Any]] = {
    "7b-8/v5e:4x8/fsdp32-none": {"dp": 32, "seq": 2048},
    "70b-4/v5e:4x8/tp8-fsdp4-none": {"tp": 8, "dp": 4, "seq": 4096},
    "8b-8/v5e:8x8/tp8-fsdp8-full": {"tp": 8, "dp": 8, "seq": 4096, "recompute": "full"},
    "1b-4/v5e:4x4/dp16-full-mb4": {"dp": 16, **COPIES, "seq": 1024, "recompute": "full", "grad_accum": 4},
    "1b-4/v5e:4x4/dp16-full-zero1-mb4": {
        "dp": 16,
        **ZERO_1,
        "seq": 1024,
        "recompute": "full",
        "grad_accum": 4,
    },
    "7b-4/v5e:4x4/tp8-dp2-none-mb4": {"tp": 8, "dp": 2, **COPIES, "seq": 2048, "grad_accum": 4},
    "7b-4/v5e:4x4/tp4-fsdp2x2-none": {"tp": 4, "dp": 4, "dp_shard": 2, "seq": 2048},
    "7b-2/v5e:4x4/tp2-fsdp4x2-none": {"tp": 2, "dp": 8, "dp_shard": 4, "seq": 2048},
    "7b-4/v5e:4x4/cp2-tp2-fsdp4-none": {"tp": 2, "cp": 2, "dp": 4, "seq": 4096},
    "70b-2/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 4096},
    "8b-2/v5p:4x4x4/fsdp64-none": {"dp": 64, "seq": 2048},
    "qwen3-8b/v5e:4x4/tp4-fsdp4-full": {"tp": 4, "dp": 4, "seq": 4096, "recompute": "full"},
    "qwen3-0.6b/v5e:4x4/tp2-fsdp8-none": {"tp": 2, "dp": 8, "seq": 2048},
    "llama-2-13b/v5e:4x8/tp8-fsdp4-full": {"tp": 8, "dp": 4, "seq": 4096, "recompute": "full"},
    "phi-2/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 2048},
    "2b-8/v5e:4x4/tp8-fsdp2-none": {"tp": 8, "dp": 2, "seq": 4096},
    "8b-4/v5e:8x8/cp4-tp4-fsdp4-none": {"cp": 4, "tp": 4, "dp": 4, "seq": 8192},
    "8b-4/v5p:4x4x4/cp4-fsdp16-full": {"cp": 4, "dp": 16, "seq": 32768, "recompute": "full"},
    "8b-4/v5p:4x4x4/tp4-fsdp4x4-none": {"tp": 4, "dp": 16, "dp_shard": 4, "seq": 4096},
    "1b-4/v5e:4x4/dp16-full-zero1": {"dp": 16, **ZERO_1, "seq": 1024, "recompute": "full"},
    "8b-2/v5e:4x4/tp2-dp8-none-zero1": {"dp": 8, "tp": 2, **ZERO_1, "seq": 2048},
    "8b-4/v5p:2x2x4/tp2-dp8-none-zero1": {"dp": 8, "tp": 2, **ZERO_1, "seq": 2048},
    "7b-4/v5e:4x4/tp4-dp4-full-zero1-mb4": {
        "dp": 4,
        "tp": 4,
        **ZERO_1,
        "seq": 2048,
        "recompute": "full",
        "grad_accum": 4,
    },
    "qwen3-0.6b/v5e:4x4/fsdp16-none": {"dp": 16, "seq": 2048},
    "8b-4/v5e:8x8/cp2-tp4-fsdp8-selective": {
        "cp": 2,
        "tp": 4,
        "dp": 8,
        "seq": 8192,
        "recompute": "selective",
    },
    "7b-4/v6e:4x4/fsdp16-selective-mb2": {"dp": 16, "seq": 2048, "recompute": "selective", "grad_accum": 2},
    "70b-2/v4:2x2x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 4096, "recompute": "full"},
    "1b-4/v5e:4x4/tp4-fsdp4-none-fp32": {"tp": 4, "dp": 4, "seq": 2048, "precision": "fp32"},
    "3b-4/v5p:2x2x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 4096, "recompute": "full"},
    "7b-2/v5e:4x4/fsdp4x4-full": {"dp": 16, "dp_shard": 4, "seq": 4096, "recompute": "full"},
    "7b-2/v5e:8x8/fsdp16x4-full": {"dp": 64, "dp_shard": 16, "seq": 4096, "recompute": "full"},
    "1b-4/v5e:4x4/dp16-full-zero2-mb4": {
        "dp": 16,
        **ZERO_2,
        "seq": 1024,
        "recompute": "full",
        "grad_accum": 4,
    },
    "7b-4/v5e:4x4/tp4-dp4-selective-zero2": {
        "dp": 4,
        "tp": 4,
        **ZERO_2,
        "seq": 2048,
        "recompute": "selective",
    },
    "8b-4/v5p:4x4x4/dp64-full-zero2": {"dp": 64, **ZERO_2, "seq": 4096, "recompute": "full"},
    "llama-3.2-1b/v5e:4x4/dp16-full-zero2": {"dp": 16, **ZERO_2, "seq": 2048, "recompute": "full"},
    "1b-4/v5e:4x4/dp16-full-zero2": {"dp": 16, **ZERO_2, "seq": 1024, "recompute": "full"},
    "1b-16/v5e:4x4/dp16-full-zero2": {"dp": 16, **ZERO_2, "seq": 2048, "recompute": "full"},
    "1b-16/v5p:2x2x4/dp16-full-zero2": {"dp": 16, **ZERO_2, "seq": 2048, "recompute": "full"},
    "8b-32/v5e:8x8/fsdp64-full": {"dp": 64, "seq": 4096, "recompute": "full"},
    "qwen2.5-0.5b/v5e:4x4/tp2-fsdp8-none": {"dp": 8, "tp": 2, "seq": 2048},
    "8b-4/v6e:4x4/fsdp16-none-mb4": {"dp": 16, "seq": 2048, "grad_accum": 4},
    "2b-4/v5p:2x2x4/tp8-fsdp2-full-mb2": {
        "dp": 2,
        "tp": 8,
        "seq": 4096,
        "recompute": "full",
        "grad_accum": 2,
    },
    "7b-4/v6e:4x4/tp2-fsdp8-full-fp32": {
        "dp": 8,
        "tp": 2,
        "seq": 2048,
        "recompute": "full",
        "precision": "fp32",
    },
    "mistral-7b-v0.1/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 8192, "recompute": "full"},
    "qwen2.5-0.5b/v6e:2x4/cp2-fsdp4-full": {"dp": 4, "cp": 2, "seq": 16384, "recompute": "full"},
    "llama-3.2-1b/v6e:2x2/fsdp4-full": {"dp": 4, "seq": 8192, "recompute": "full"},
    "llama-3.2-1b/v5p:2x2x2/tp2-dp4-selective-zero1-sgd": {
        "dp": 4,
        "tp": 2,
        **ZERO_1,
        "seq": 4096,
        "recompute": "selective",
        "optim": "sgd-momentum",
    },
    "t5-11b/v5p:2x2x4/tp4-fsdp4-full-mb2": {
        "dp": 4,
        "tp": 4,
        "seq": 512,
        "micro_batch": 2,
        "recompute": "full",
    },
    "pythia-12b/v5p:2x2x4/tp4-fsdp4-full": {"dp": 4, "tp": 4, "seq": 2048, "recompute": "full"},
    "70b-2/v5p:2x2x4/fsdp16-full": {"dp": 16, "seq": 2048, "recompute": "full"},
    "8b-4/v5e:4x4/fsdp16-full-fp32": {"dp": 16, "seq": 1024, "recompute": "full", "precision": "fp32"},
    "gpt-neox-20b/v5p:2x2x4/fsdp16-full": {"dp": 16, "seq": 2048, "recompute": "full"},
    "llama-3.2-3b/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 2048, "recompute": "full"},
    "7b-4/v5e:4x4/tp4-dp4-none-zero1-sgd": {**ZERO_1, "dp": 4, "tp": 4, "seq": 2048, "optim": "sgd-momentum"},
    "3b-4/v5e:4x4/tp8-fsdp2-none": {"tp": 8, "dp": 2, "seq": 4096},
    "3b-4/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 2048},
    "70b-2/v5e:4x4/tp16-none": {"tp": 16, "dp": 1, "seq": 4096},
    "gpt-neox-20b/v5p:2x2x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 2048, "recompute": "full"},
    "opt-6.7b/v5p:2x2x4/tp4-fsdp4-none-mb2": {"tp": 4, "dp": 4, "seq": 2048, "micro_batch": 2},
    "llama-2-7b/v6e:4x4/tp8-fsdp2-selective": {"tp": 8, "dp": 2, "seq": 4096, "recompute": "selective"},
    "phi-3-mini-4k/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 2048},
    "phi-4-14b/v5p:2x2x4/tp2-fsdp8-full": {"tp": 2, "dp": 8, "seq": 2048, "recompute": "full"},
    "8b-4/v5e:4x4/tp4-fsdp4-full": {"tp": 4, "dp": 4, "seq": 4096, "recompute": "full"},
    "opt-1.3b/v6e:4x4/tp2-fsdp8-none": {"tp": 2, "dp": 8, "seq": 2048},
    "opt-13b/v5p:2x2x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 2048, "recompute": "full"},
    "gpt2-large/v5e:4x4/fsdp16-none-mb2": {"dp": 16, "seq": 1024, "micro_batch": 2},
    "t5-small/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 512, "micro_batch": 4},
    "3b-4/v6e:2x4/tp4-fsdp2-selective-mb2": {
        "tp": 4,
        "dp": 2,
        "seq": 4096,
        "recompute": "selective",
        "grad_accum": 2,
    },
    "8b-2/v5e:4x8/tp16-fsdp2-full": {"tp": 16, "dp": 2, "seq": 4096, "recompute": "full"},
    "8b-4/v5e:8x8/tp4-fsdp8x2-selective": {
        "tp": 4,
        "dp": 16,
        "dp_shard": 8,
        "seq": 4096,
        "recompute": "selective",
    },
    "7b-4/v6e:4x8/tp2-fsdp8x2-full": {"tp": 2, "dp": 16, "dp_shard": 8, "seq": 2048, "recompute": "full"},
    "8b-4/v5e:4x8/cp4-fsdp8-selective": {"cp": 4, "dp": 8, "seq": 8192, "recompute": "selective"},
    "8b-4/v5p:2x4x4/cp2-fsdp8x2-full": {"cp": 2, "dp": 16, "dp_shard": 8, "seq": 8192, "recompute": "full"},
    "2b-4/v6e:4x4/tp4-fsdp4-full": {"tp": 4, "dp": 4, "seq": 2048, "recompute": "full"},
    "3b-4/v5e:4x8/tp8-fsdp4-none": {"tp": 8, "dp": 4, "seq": 2048},
    "70b-2/v5p:4x4x8/tp8-fsdp16-full": {"tp": 8, "dp": 16, "seq": 4096, "recompute": "full"},
    "1b-4/v6e:2x4/cp4-fsdp2-none": {"cp": 4, "dp": 2, "seq": 8192},
    "llama-2-7b/v5e:4x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 4096, "recompute": "full"},
    "qwen2.5-0.5b/v5e:2x4/tp2-fsdp4-full": {"tp": 2, "dp": 4, "seq": 2048, "recompute": "full"},
    "7b-2/v5e:4x8/tp8-fsdp4-full": {"tp": 8, "dp": 4, "seq": 4096, "recompute": "full"},
    "8b-2/v6e:4x8/tp16-fsdp2-full": {"tp": 16, "dp": 2, "seq": 16384, "recompute": "full"},
    "7bv-2/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 2048, "recompute": "full"},
    "7b-2/v5e:8x8/tp4-fsdp8x2-full": {"tp": 4, "dp": 16, "dp_shard": 8, "seq": 2048, "recompute": "full"},
    "7bv-2/v5e:4x4/tp4-fsdp4-full": {"tp": 4, "dp": 4, "seq": 4096, "recompute": "full"},
    "3b-2/v5e:4x8/tp16-fsdp2-selective": {"tp": 16, "dp": 2, "seq": 4096, "recompute": "selective"},
    "8b-2/v5e:8x8/tp16-fsdp4-none": {"tp": 16, "dp": 4, "seq": 4096},
    "70b-2/v5p:2x4x4/tp16-fsdp2-none": {"tp": 16, "dp": 2, "seq": 4096},
    "8b-2/v5e:4x4/cp2-fsdp4x2-none": {"cp": 2, "dp": 8, "dp_shard": 4, "seq": 4096},
    "8b-2/v5e:8x8/cp4-fsdp4x4-full": {"cp": 4, "dp": 16, "dp_shard": 4, "seq": 8192, "recompute": "full"},
    "70b-2/v5e:4x8/tp16-fsdp2-selective": {"tp": 16, "dp": 2, "seq": 4096, "recompute": "selective"},
    "70b-2/v5p:2x4x4/tp16-fsdp2-full": {"tp": 16, "dp": 2, "seq": 2048, "recompute": "full"},
    "opt-1.3b/v5e:2x4/tp2-fsdp4-full": {"tp": 2, "dp": 4, "seq": 2048, "recompute": "full"},
    "opt-1.3b/v6e:2x4/tp4-fsdp2-full": {"tp": 4, "dp": 2, "seq": 2048, "recompute": "full"},
    "opt-125m/v5e:2x2/fsdp4-none": {"dp": 4, "seq": 2048},
    "qwen3-0.6b/v6e:2x4/tp4-fsdp2-full": {"tp": 4, "dp": 2, "seq": 2048, "recompute": "full"},
    "8b-2/v6e:2x4/tp2-fsdp4-full": {"tp": 2, "dp": 4, "seq": 4096, "recompute": "full"},
    "7b-2/v6e:2x4/tp8-none": {"tp": 8, "seq": 4096},
    "13b-2/v5e:4x4/tp8-fsdp2-none": {"tp": 8, "dp": 2, "seq": 4096},
    "mistral-7b-v0.1/v6e:4x4/fsdp16-full": {"dp": 16, "seq": 4096, "recompute": "full"},
    "8b-2/v5p:2x2x2/tp4-fsdp2-none": {"tp": 4, "dp": 2, "seq": 4096},
    "qwen3-8b/v6e:4x4/fsdp16-full": {"dp": 16, "seq": 4096, "recompute": "full"},
    "1b-2/v5e:2x4/tp2-fsdp2x2-full": {"tp": 2, "dp": 4, "dp_shard": 2, "seq": 2048, "recompute": "full"},
    "3b-2/v6e:4x4/cp4-fsdp4-none": {"cp": 4, "dp": 4, "seq": 8192},
    "8b-2/v5e:2x4/tp2-fsdp4-none-mb2": {"tp": 2, "dp": 4, "seq": 2048, "grad_accum": 2},
    "2b-2/v5e:2x4/cp2-fsdp4-selective": {"cp": 2, "dp": 4, "seq": 4096, "recompute": "selective"},
    "gpt2-medium/v5e:2x4/fsdp8-none-mb2": {"dp": 8, "seq": 1024, "micro_batch": 2},
}
"""The same, compiled only after communication was priced as the others have it."""

MODELS: dict[str, Mapping[str, Any]] = {
    "qwen3-8b/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 4096, "recompute": "full"},
    "gpt2-xl/v5e:4x4/fsdp16-none": {"dp": 16, "seq": 1024, "micro_batch": 4},
    "qwen2.5-7b/v5e:4x4/tp4-fsdp4-selective": {"tp": 4, "dp": 4, "seq": 4096, "recompute": "selective"},
    "opt-6.7b/v5e:4x4/tp8-fsdp2-full": {"tp": 8, "dp": 2, "seq": 2048, "recompute": "full"},
    "phi-3-mini-4k/v5p:2x2x4/fsdp16-none": {"dp": 16, "seq": 2048},
    "llama-3.1-8b/v5e:4x4/fsdp16-full-bf16": {
        "dp": 16,
        "seq": 4096,
        "recompute": "full",
        **NARROW,
    },
    "llama-3.2-3b/v5e:4x4/cp2-tp2-fsdp4-full": {"cp": 2, "tp": 2, "dp": 4, "seq": 8192, "recompute": "full"},
    "llama-3.2-1b/v5e:4x4/tp4-fsdp4-full-fp32": {
        "tp": 4,
        "dp": 4,
        "seq": 4096,
        "recompute": "full",
        "precision": "fp32",
    },
    "gemma-2-9b/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 4096, "recompute": "full"},
    "t5-small/v5e:4x4/fsdp16-none-mb8": {"dp": 16, "seq": 512, "micro_batch": 8},
    "t5-11b/v5p:2x2x4/fsdp16-full-mb4": {"dp": 16, "seq": 512, "micro_batch": 4, "recompute": "full"},
    "bert-large/v5e:4x4/fsdp16-none-mb8": {"dp": 16, "seq": 512, "micro_batch": 8},
    "pythia-12b/v5e:4x4/fsdp16-full-sgd": {
        "dp": 16,
        "seq": 2048,
        "recompute": "full",
        "optim": "sgd-momentum",
    },
    "qwen2.5-14b/v5p:2x2x4/tp4-fsdp4-none-momentum": {"tp": 4, "dp": 4, "seq": 4096, "optim": "sgd-momentum"},
    "phi-2/v6e:4x4/fsdp16-none-bf16": {"dp": 16, "seq": 2048, **NARROW},
    "opt-1.3b/v5e:4x4/tp4-fsdp4-none": {"tp": 4, "dp": 4, "seq": 2048, "micro_batch": 4},
    "falcon-7b/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 2048, "recompute": "full"},
    "llama-3.2-1b/v5e:4x4/cp4-fsdp4-selective": {"cp": 4, "dp": 4, "seq": 8192, "recompute": "selective"},
    "llama-3.2-1b/v5e:4x4/fsdp16-full": {"dp": 16, "seq": 16384, "recompute": "full"},
}
"""Shipped models, whole: norms of heads, plain and tied ones, 16-bit states, encoders, other optimizers, parallel
blocks. Compiled once for their memory, but for the last two."""

FRESH: dict[str, Mapping[str, Any]] = {
    "qwen3-32b/v5e:8x8/fsdp64-full": {"dp": 64, "seq": 4096, "recompute": "full"},
    "falcon-40b/v5p:4x4x4/tp8-fsdp8-full": {"dp": 8, "tp": 8, "seq": 2048, "recompute": "full"},
    "opt-30b/v6e:8x8/tp4-fsdp16-full": {"dp": 16, "tp": 4, "seq": 2048, "recompute": "full"},
    "llama-2-70b/v4:4x4x8/tp4-fsdp32-full-mb2": {"dp": 32, "tp": 4, "seq": 4096, "recompute": "full", "micro_batch": 2},
    "qwen2.5-32b/v5p:4x4x4/tp8-fsdp8-products": {"dp": 8, "tp": 8, "seq": 4096, "recompute": "dots_nobatch"},
    "llama-3.2-3b/v5e:4x4/dp4-tp4-full": {"dp": 4, "tp": 4, **COPIES, "seq": 2048, "recompute": "full"},
    "llama-3.1-8b/v5p:2x2x4/fsdp16-products-mb2": {
        "dp": 16, "seq": 2048, "recompute": "dots_nobatch", "micro_batch": 2,
    },
    "llama-3.1-8b/v6e:4x4/fsdp4x4-full-mb2": {
        "dp": 16, "dp_shard": 4, "seq": 2048, "recompute": "full", "micro_batch": 2,
    },
    "qwen2.5-14b/v6e:4x4/tp2-fsdp8-full-mb2": {"dp": 8, "tp": 2, "seq": 2048, "recompute": "full", "micro_batch": 2},
    "mistral-7b-v0.3/v5e:8x8/fsdp16x4-attention": {"dp": 64, "dp_shard": 16, "seq": 4096, "recompute": "attention"},
    "gpt2-xl/v5e:2x4/dp8-full-mb4": {"dp": 8, **COPIES, "seq": 1024, "recompute": "full", "micro_batch": 4},
    "llama-2-13b/v4:2x2x4/tp2-fsdp8-none": {"dp": 8, "tp": 2, "seq": 2048},
    "phi-4-14b/v6e:4x4/fsdp16-full-bf16": {"dp": 16, "seq": 2048, "recompute": "full", **NARROW},
    "pythia-12b/v4:2x2x4/tp4-fsdp4-none-mb2": {"dp": 4, "tp": 4, "seq": 2048, "micro_batch": 2},
}  # fmt: skip
"""Shipped models again, compiled before their memory was priced: whole groups of data or tensor ranks, products kept,
other slices and policies beside these than above."""

USUAL: Mapping[str, Any] = {
    "dp": 1, "tp": 1, "cp": 1, "pp": 1, "ep": 1, "micro_batch": 1, "grad_accum": 1, "recompute": "none",
    "attention": "splash", "sequence_parallel": True, "precision": "bf16", "master_dtype": "float32", "optim": "adamw",
    "grad_dtype": "float32", "fused_loss": False,
}  # fmt: skip


def row_of(name: str) -> dict[str, Any]:
    """The case as a run (docs/formats.md), not yet measured."""
    case = {**USUAL, **(CASES | HELD_OUT | MODELS | FRESH | FAMILIES)[name]}
    widths, slice_name, _ = name.split("/")
    size, _, layers = widths.rpartition("-")
    generation, topology = slice_name.split(":")
    shard = case.pop("dp_shard", case["dp"])
    copies = case["dp"] // shard
    sharding = "NO_SHARD" if shard == 1 else "HYBRID_SHARD" if copies > 1 else "FULL_SHARD"
    model: dict[str, Any] = {"name": widths}
    if size in SIZES:
        model = {
            "name": "llama-style",
            "layers": int(layers),
            "gated_mlp": True,
            "tied": False,
            **SIZES[size],
        }
    devices = case["dp"] * case["tp"] * case["cp"]
    return {
        "id": f"xla-compiled/{name}",
        "source": "benchmarks/compiling.py (buffers assigned by XLA, compiled ahead of time)",
        "quality": "A",
        "series": "xla-compiler",
        "model": {**model, "seq": case.pop("seq")},
        "hardware": {"gpu": f"tpu-{generation}", "n_gpus": devices, "slices": 1, "topology": topology},
        "parallel": {
            "dp_shard": shard, "dp_replicate": copies, "sharding": sharding, **case,
            "global_batch": case["dp"] * case["micro_batch"] * case["grad_accum"],
        },
    }  # fmt: skip


def measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """What the compiler assigned for ``row``, and its versions; of a step that it refuses, only that."""
    plan, _ = plan_from_run(row)
    found = compiled_step(plan)
    fits = "refused" not in found and found["assigned_bytes"] <= plan.cluster.device.memory
    names = {"tensor_gib_per_gpu": "peak_bytes", "memory_gib_per_gpu": "assigned_bytes"}
    sizes = {field: found[name] / 2**30 for field, name in names.items()} if fits else {}
    sent = {name: found.get(name) for name in ("collectives", "of_layers")}
    versions = [f"{name} {version}" for name, version in found["versions"].items()]
    return {"ok": fits, **sizes, "versions": versions, **sent_bytes(sent)}


def sent_bytes(found: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes that a device sends, by kind: in all, and in the loops over layers; none where the compiler is silent."""
    names = {"collectives": "sent_bytes", "of_layers": "sent_bytes_of_layers"}
    return {
        names[place]: {kind: round(total["sent_bytes"]) for kind, total in sorted(by.items())}
        for place, by in found.items()
        if by
    }


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    measure_cases("xla_compiled.jsonl", CASES, row_of, measured, wanted)
    measure_cases("xla_held_out.jsonl", HELD_OUT, row_of, measured, wanted)
    measure_cases("xla_models.jsonl", MODELS, row_of, measured, wanted)
    measure_cases("xla_fresh.jsonl", FRESH, row_of, measured, wanted)
    measure_cases("xla_families.jsonl", FAMILIES, row_of, measured, wanted)
