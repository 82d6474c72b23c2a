"""A second planner on the same runs: Calculon's predictions, kept as data, and its table in docs/accuracy.md.

    git clone https://github.com/calculon-ai/calculon && pip install pandas psutil
    PYTHONPATH=calculon python benchmarks/peer_calculon.py calculon    # write tests/published/peer_calculon.json again

Calculon (Isaev et al., "Calculon: A methodology and tool for high-level co-design of systems and large language
models", SC 2023) prices blocks of GPT operator by operator on a system whose efficiencies its files hold. It gets those
files as they are, but for memory, which is lifted, as these runs ran.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from judging import PUBLISHED, Judged
from peers import FILES, GATED, keep_answers

from planner.validation import error_statistics

PREDICTIONS = PUBLISHED / "peer_calculon.json"
COMMIT = "caa4b11"
SYSTEMS = {"A100-SXM4-80GB": "a100_80g", "H100-SXM-80GB": "h100_80g_nvl8"}
"""Devices as the runs name them -> its files."""
PER_NODE = 8
"""Devices of its first network; the second joins nodes."""
RECOMPUTES = {"none": "none", "unspecified": "none", "full": "full", "selective": "attn_only"}
PRECISIONS = ("bf16", "fp16", "fp16/bf16", "bf16 (assumed)")
NEEDED = ("dp", "tp", "pp", "micro_batch", "global_batch")
ENDLESS_GIB = 1e6


def predictions() -> dict[str, float]:
    """Seconds of a step by run."""
    found: dict[str, float] = json.loads(PREDICTIONS.read_text())["runs"]
    return found


def section(judged: Mapping[str, Sequence[Judged]], names: Mapping[str, str]) -> list[list[str]]:
    """Lines of a table: what, how many, our median error and 90th percentile, and Calculon's."""
    theirs, lines = predictions(), []
    for name in FILES:
        for split in ("fit", "report"):
            rows = [r for r in judged[name] if r.split == split and r.row.id in theirs and _timed(r)]
            if rows:
                both = [r.row.step_time_error or 0.0 for r in rows], [_error(r, theirs) for r in rows]
                lines.append([f"{names[name]}: {split}", str(len(rows)), *_cells(both[0]), *_cells(both[1])])
    return lines


def _timed(row: Judged) -> bool:
    return row.row.step_time_error is not None


def _error(row: Judged, theirs: Mapping[str, float]) -> float:
    assert row.row.predicted is not None
    measured = row.row.predicted.step_time_s / (1 + (row.row.step_time_error or 0.0))
    return theirs[str(row.row.id)] / measured - 1


def _cells(errors: Sequence[float]) -> tuple[str, str]:
    found = error_statistics(errors)
    return f"{100 * (found.median_abs_error or 0.0):.1f} %", f"{100 * (found.p90_abs_error or 0.0):.1f} %"


# --- running the peer -------------------------------------------------------------------------------------


def cannot(run: Mapping[str, Any]) -> str | None:
    """Why the peer has no answer to a run, or None."""
    parallel, model = run["parallel"], run["model"]
    reasons = {
        "crashed": run["measured"].get("ok") is False,
        "device": run["hardware"]["gpu"] not in SYSTEMS,
        "precision": parallel.get("precision") not in PRECISIONS,
        "adapters": run.get("adapter") is not None,
        "model given by name": "name" in model and "layers" not in model,
        "context parallelism": (parallel.get("cp") or 1) > 1,
        "experts": bool(model.get("experts")),
        "sharded weights or gradients": parallel.get("zero_stage") not in (None, 0, 1),
        "recomputation": _recomputation(parallel) is None,
        "not published": not all(parallel.get(key) for key in NEEDED),
    }
    found = next((reason for reason, holds in reasons.items() if holds), None)
    return found or ("stages of unequal layers" if model["layers"] % parallel["pp"] else None)


def _recomputation(parallel: Mapping[str, Any]) -> str | None:
    return RECOMPUTES.get(str(parallel.get("recompute") or "none").split(" ")[0])


def execution(run: Mapping[str, Any]) -> dict[str, Any]:
    """The run in its words; gradients and weights of a distributed optimizer overlap, as they can there."""
    model, parallel = run["model"], run["parallel"]
    data, tensor, pipeline = (parallel[key] for key in ("dp", "tp", "pp"))
    devices, recompute = data * tensor * pipeline, _recomputation(parallel)
    splits = bool(parallel.get("sequence_parallel")) and tensor > 1
    published = parallel.get("vp")
    virtual = published if isinstance(published, int) and published and pipeline > 1 else 1
    shards = parallel.get("zero_stage") == 1 and data > 1
    outside = int(devices > PER_NODE)
    return {
        "num_procs": devices,
        "tensor_par": tensor,
        "pipeline_par": pipeline,
        "data_par": data,
        "tensor_par_net": int(tensor > PER_NODE),
        "pipeline_par_net": outside,
        "data_par_net": outside,
        "batch_size": parallel["global_batch"],
        "microbatch_size": parallel["micro_batch"],
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multihead",
        "activation_recompute": recompute,
        "pipeline_interleaving": 1 if model["layers"] // pipeline % virtual else virtual,
        "optimizer_sharding": shards,
        "tensor_par_comm_type": "rs_ag" if splits else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": splits and recompute != "full",
        "data_par_overlap": shards,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }


def application(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model in its words: two matrices in a feed-forward layer, as many key as query heads, no vocabulary."""
    width = model["ffn_hidden"] * (GATED if model.get("gated_mlp") else 1)
    return {
        "name": model["name"],
        "hidden": model["hidden"],
        "feedforward": int(width),
        "seq_size": model["seq"],
        "attn_heads": model["heads"],
        "attn_size": model["hidden"] // model["heads"],
        "num_blocks": model["layers"],
    }


def ask(run: Mapping[str, Any], clone: Path) -> float | None:
    """Seconds of a step, None where it refuses; needs the clone on the path."""
    import logging

    from calculon.llm import Llm
    from calculon.system import System

    system = json.loads((clone / "systems" / f"{SYSTEMS[run['hardware']['gpu']]}.json").read_text())
    system["mem1"]["GiB"] = ENDLESS_GIB
    described = System(system)
    llm = Llm(Llm.Application(application(run["model"])), logging.getLogger("calculon"))
    try:
        llm.compile(described, Llm.Execution.from_json(execution(run)))
        llm.run(described)
    except (AssertionError, Llm.Error):
        return None
    return float(f"{llm.get_stats_json(False)['total_time']:.6g}")


def main(clone: Path) -> None:
    """Ask about every run that the peer can answer, and keep what it says."""
    about = {"peer": "calculon", "commit": COMMIT}
    keep_answers(PREDICTIONS, about, cannot, partial(ask, clone=clone), refused="refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
