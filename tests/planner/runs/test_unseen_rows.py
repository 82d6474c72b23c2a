"""Rows that nobody here has seen: published ones with every field changed in turn. Each is evaluated, or refused in
one sentence; none breaks the evaluator, and no answer is beyond what devices can do.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cluster_specs.shipped import device_files
from planner.runs import plan_from_run
from planner.validation import Prediction, validate

PUBLISHED = Path(__file__).parents[2] / "published"
FILES = ("runs_gpu", "runs_tpu", "runs_memory", "sweep_h100", "grid_a100", "torch_memory", "xla_memory")
MOST_MICROBATCHES = 256
"""Of the rows that are changed: long pipelines of more take seconds to simulate."""
PER_VALUE = 2
"""Rows that each value is put into."""


def _kinds() -> list[dict[str, Any]]:
    """One row of every series, device and kind of model and of parallelism."""
    found: dict[tuple[object, ...], dict[str, Any]] = {}
    for name in FILES:
        for row in map(json.loads, (PUBLISHED / f"{name}.jsonl").read_text().splitlines()):
            pipeline, experts = (row["parallel"].get("pp") or 1) > 1, bool(row["model"].get("experts"))
            if (row["parallel"].get("grad_accum") or 1) <= MOST_MICROBATCHES:
                found.setdefault((row["series"], row["hardware"]["gpu"], pipeline, experts), row)
    return list(found.values())


KINDS = _kinds()

DEVICES = (
    *device_files(),
    "NVIDIA H100 80GB HBM3",
    "A100 80GB SXM4",
    "AMD Instinct MI300X",
    "Ascend-910B",
    "",
    7,
    None,
)
COUNTS = (1, 2, 3, 7, 12, 24, 100, 333, 1000, 4096, 32768, 0, -1, None, "64", "many", 8.5)
DEGREES = (1, 2, 3, 4, 7, 8, 16, 64, 1024, 0, -1, None, "8")
SIZES = (1, 100, 128, 4097, 16384, 0, -1, None, "4096", 2.5)
FLAGS = (True, False, None, "on")
FIGURES = (None, 0, -1, "1.5", "n/a", math.nan, math.inf, 1e30, [1, 2], True)
VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "hardware.gpu": DEVICES,
        "hardware.n_gpus": COUNTS,
        "hardware.gpus_per_node": (1, 2, 3, 4, 6, 7, 16, 72, 0, None, "8"),
        "hardware.intra_link": ("PCIe Gen5 x16", "NVSwitch", "xGMI", "0 GB/s", "nonsense", None, 5),
        "hardware.inter_link": ("10GbE", "NDR", "RoCE v2 400G", "EFA", "8x400 Gb/s", "TCP", "0 Gb/s", "x", None),
        "hardware.slices": (0, 1, 2, 3, None),
        "hardware.topology": ("4x4", "4x4x4", "1x1", "abc", "4x", "", None),
        "hardware.devices_per_chip": (1, 2, 3, 0, None),
        **{f"model.{name}": SIZES for name in ("hidden", "ffn_hidden", "vocab", "head_dim", "moe_ffn_hidden")},
        **{f"model.{name}": (1, 2, 3, 7, 96, 0, None, "32") for name in ("layers", "heads", "kv_heads")},
        **{f"model.{name}": (0, 1, 2, 8, 256, None) for name in ("experts", "topk", "shared_experts")},
        **{f"model.{name}": (0, 1, 3, 1000, None) for name in ("first_dense_layers", "moe_layers", "mtp_layers")},
        **{f"model.{name}": (0, 512, None) for name in ("kv_lora_rank", "sliding_window", "params_b")},
        **{f"model.{name}": FLAGS for name in ("gated_mlp", "tied", "bias")},
        "model.positions": ("rotary", "learned", "none", "alibi", True, None),
        "model.norm": ("rms", "layer", "layer_no_bias", "batch", None),
        "model.activation": ("silu", "gelu", "relu", "relu2", "mish", None),
        "model.seq": (1, 16, 512, 4096, 32768, 1048576, 0, None, "4096"),
        "model.name": (None, "llama-3.1-8b", "no-such-model", 5),
        **{f"parallel.{name}": DEGREES for name in ("dp", "tp", "pp", "cp", "ep", "etp", "dp_shard", "dp_replicate")},
        **{f"parallel.{name}": DEGREES for name in ("micro_batch", "global_batch", "grad_accum", "num_microbatches")},
        "parallel.vp": (0, 1, 2, 3, 5, "2", "interleaved", "auto", None),
        "parallel.zero_stage": (0, 1, 2, 3, 4, None, "3"),
        "parallel.sharding": ("FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "hsdp", "ZeRO 3",
                              "DeepSpeed ZeRO-2", "fully_shard", "GSPMD", "ZeRO++", "", None),
        "parallel.recompute": ("none", "full", "selective", "every other layer", "SAC", "nothing_saveable", "True",
                               "full (block, 10 layers)", "minimal_offloaded", "core_attn", "", None, True, [], 1),
        "parallel.schedule": ("1F1B", "GPipe", "interleaved (vp=4)", "ZBV", "zb1p", "DualPipe", "hanayo", "chimera",
                              "PipeDream-2BW", "circular", "non-interleaved", "", None),
        "parallel.precision": ("bf16", "FP16", "fp32", "tf32", "fp8", "mxfp8", "int8", "16-mixed", "amp", "", None),
        "parallel.optim": ("adam", "FusedAdam", "adamw_torch_fused", "paged_adamw_8bit", "lion", "muon", "shampoo"),
        "parallel.attention": ("flash", "FA3", "xformers", "eager", "math", "paged", None),
        "parallel.stack": ("Megatron-DeepSpeed", "HuggingFace", "PyTorch FSDP", "MaxText", "nanotron", "oneflow"),
        **{f"parallel.{name}": ("fp32", "bf16", "fp16", "fp8", None) for name in ("grad_dtype", "reduce_dtype")},
        **{f"parallel.{name}": FLAGS for name in ("sequence_parallel", "act_offload", "cpu_offload_optimizer")},
        **{f"measured.{name}": FIGURES for name in ("step_time_s", "tokens_per_s", "memory_gib_per_gpu", "ok")},
        **{name: (None, {}, [], "text", 5) for name in ("model", "hardware", "parallel", "measured", "series", "id")},
    }
)  # fmt: skip
"""Dotted field of a row -> what other rows may have in it."""


def changed(row: Mapping[str, Any], field: str, value: Any) -> dict[str, Any]:
    section, _, key = field.rpartition(".")
    return {**row, section: {**row[section], key: value}} if section else {**row, key: value}


def rows_with(field: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Every value of a field, each in some rows: all kinds in turn."""
    kinds = itertools.cycle(KINDS)
    for skipped in range(sum(map(ord, field)) % len(KINDS)):
        next(kinds, skipped)
    for value in VALUES[field]:
        for row in itertools.islice(kinds, PER_VALUE):
            yield value, changed(row, field, value)


def absurd(found: Prediction) -> bool:
    """Whether a prediction is no positive number, or more than devices can do."""
    figures = (
        found.step_time_s,
        found.tokens_per_s_per_gpu,
        found.memory_gib_per_gpu,
        found.tensor_gib_per_gpu,
    )
    return not all(0 < figure < math.inf for figure in figures) or not 0 < found.mfu < 1


@pytest.mark.parametrize("field", VALUES)
def test_every_row_is_evaluated_or_refused_in_a_sentence(field: str) -> None:
    values, rows = zip(*rows_with(field), strict=True)
    report = validate(rows)
    assert len(report.rows) == len(rows)
    for value, row, result in zip(values, rows, report.rows, strict=True):
        if result.predicted is None:
            reason = result.skipped or ""
            assert 0 < len(reason) < 400, (row["id"], value)
            assert "\n" not in reason, (row["id"], value, reason)
            assert "internal error" not in reason, (row["id"], value, reason)
        else:
            assert not absurd(result.predicted), (row["id"], value, result.predicted)
    assert report.summary.skipped == sum(result.predicted is None for result in report.rows)


@pytest.mark.parametrize("device", list(device_files()))
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_a_common_run_is_plausible_on_every_device(device: str, precision: str) -> None:
    """A 1.3B model that is sharded over 32 devices, four sequences each: a hundredth to nine tenths of the peak."""
    row = {
        "model": {"layers": 24, "hidden": 2048, "heads": 16, "ffn_hidden": 8192, "vocab": 50304, "seq": 2048},
        "hardware": {"gpu": device, "n_gpus": 32},
        "parallel": {"sharding": "FULL_SHARD", "micro_batch": 4, "global_batch": 128, "precision": precision},
    }
    (result,) = validate([row]).rows
    if result.predicted is None:
        assert f"has no {precision} rate" in (result.skipped or "")
    else:
        assert 0.01 < result.predicted.mfu < 0.9


@pytest.mark.parametrize(
    ("fields", "schedule", "virtual_stages"),
    [
        ({"schedule": "1F1B", "vp": 4}, "interleaved", 4),
        ({"schedule": "1F1B", "vp": "interleaved"}, "interleaved", 2),
        ({"schedule": "interleaved 1F1B", "vp": 1}, "1f1b", 1),
        ({"schedule": "interleaved 1F1B", "vp": None}, "interleaved", 2),
        ({"schedule": "ZBV", "vp": 1}, "zb-v", 2),
        ({"schedule": None, "vp": 1}, "1f1b", 1),
    ],
)
def test_the_stages_of_a_rank_say_whether_a_pipeline_is_interleaved(
    fields: dict[str, Any], schedule: str, virtual_stages: int
) -> None:
    """Megatron's logs call both 1F1B."""
    row = next(
        row for row in KINDS if row["series"] == "VocabularyParallelism" or row["parallel"].get("pp") == 8
    )
    plan, _ = plan_from_run({**row, "parallel": {**row["parallel"], **fields}})
    assert (plan.plan.schedule, plan.plan.virtual_stages) == (schedule, virtual_stages)


def test_what_is_blank_was_not_published() -> None:
    row = KINDS[0]
    blank = {**row["parallel"], "recompute": "", "sharding": "", "precision": "", "dp_shard": -1}
    absent = {**row["parallel"], "recompute": None, "sharding": None, "precision": None, "dp_shard": None}
    assert plan_from_run({**row, "parallel": blank}) == plan_from_run({**row, "parallel": absent})
