"""Another planner on the same runs: its predictions, kept as data, and the section of docs/accuracy.md.

    pip install llm-analysis==0.2.2 && python benchmarks/peers.py    # write tests/published/peers.json again

llm-analysis (github.com/cli99/llm-analysis) takes the time of a step as FLOPs over peak times an efficiency that
its user gives, 1 if not. Its times are kept at 1; any other efficiency divides them.
"""

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PUBLISHED = Path(__file__).resolve().parent.parent / "tests" / "published"
PREDICTIONS = PUBLISHED / "peers.json"
COMMAND = "python benchmarks/peers.py"

FITTED_ON = "runs_gpu"
"""File on whose fit split the peer's efficiencies are fitted, as it has all devices and ordinary settings."""
FILES = ("runs_gpu", "sweep_h100", "grid_a100")
DEVICES = {
    "A100-SXM4-40GB": "a100-sxm-40gb",
    "A100-SXM4-80GB": "a100-sxm-80gb",
    "H100-SXM-80GB": "h100-sxm-80gb",
    "V100-SXM2-16GB": "v100-sxm-16gb",
    "V100-SXM2-32GB": "v100-sxm-32gb",
}
"""Devices as the runs name them -> as the peer does."""
ANY = "any device"
"""Stands for devices of which the fit split has no run."""

GATED = 1.5
"""It has two matrices in a feed-forward layer: gated ones count as half as wide again, as in its own Llama files."""


def predictions() -> dict[str, dict[str, float]]:
    """What the peer printed: by run, ``step_time_s`` at efficiency 1 and ``memory_gib``."""
    found: dict[str, dict[str, float]] = json.loads(PREDICTIONS.read_text())["runs"]
    return found


def section(judged: Mapping[str, Sequence[Any]], names: Mapping[str, str]) -> str:
    """Our errors beside the peer's on the runs that it has, in Markdown.

    ``judged`` is as in accuracy.py, by file; ``names`` says what a file is.
    """
    theirs = predictions()
    files = {name: [r for r in judged[name] if _both(r, theirs)] for name in FILES}
    fitted = _efficiencies(files[FITTED_ON], theirs)
    lines = [
        "| runs | n | ours | its 90th | llm-analysis | its 90th | with fitted efficiency | its 90th |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, rows in files.items():
        for split in ("fit", "report"):
            chosen = [row for row in rows if row.split == split]
            if chosen:
                lines.append(_line(f"{names[name]}: {split}", chosen, theirs, fitted))
    memory = [row for rows in files.values() for row in rows if row.row.memory_error is not None]
    ours, its = [row.row.memory_error for row in memory], [_memory_error(row, theirs) for row in memory]
    lines += [
        "",
        "| memory as printed | n | ours | its 90th | llm-analysis | its 90th |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        f"| fit and report | {len(memory)} | " + " | ".join((*_cells(ours), *_cells(its))) + " |",
    ]
    return "\n".join(lines) + "\n"


def _both(row: Any, theirs: Mapping[str, Any]) -> bool:
    return row.row.id in theirs and row.row.step_time_error is not None


def _line(
    name: str, rows: Sequence[Any], theirs: Mapping[str, Mapping[str, float]], fitted: Mapping[str, float]
) -> str:
    ours = [row.row.step_time_error for row in rows]
    plain = [_error(row, theirs, 1.0) for row in rows]
    tuned = [_error(row, theirs, fitted.get(row.device, fitted[ANY])) for row in rows]
    cells = [cell for errors in (ours, plain, tuned) for cell in _cells(errors)]
    return f"| {name} | {len(rows)} | " + " | ".join(cells) + " |"


def _efficiencies(rows: Sequence[Any], theirs: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Efficiency per device, and over all, that makes the median error on the fit split vanish."""
    ratios: dict[str, list[float]] = {}
    for row in rows:
        if row.split == "fit":
            for device in (row.device, ANY):
                ratios.setdefault(device, []).append(1 + _error(row, theirs, 1.0))
    return {device: statistics.median(values) for device, values in ratios.items()}


def _error(row: Any, theirs: Mapping[str, Mapping[str, float]], efficiency: float) -> float:
    measured: float = row.row.predicted.step_time_s / (1 + row.row.step_time_error)
    return theirs[row.row.id]["step_time_s"] / efficiency / measured - 1


def _memory_error(row: Any, theirs: Mapping[str, Mapping[str, float]]) -> float:
    measured: float = row.row.predicted.memory_gib_per_gpu / (1 + row.row.memory_error)
    return theirs[row.row.id]["memory_gib"] / measured - 1


def _cells(errors: Sequence[float]) -> tuple[str, str]:
    """Median and 90th percentile of absolute errors."""
    if not errors:
        return "-", "-"
    ordered = sorted(map(abs, errors))
    ninetieth = ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))]
    return f"{100 * statistics.median(ordered):.1f} %", f"{100 * ninetieth:.1f} %"


# --- running the peer -------------------------------------------------------------------------------------


def cannot(run: Mapping[str, Any]) -> str | None:
    """Why the peer has no answer to a run, or None."""
    parallel, hardware = run["parallel"], run["hardware"]
    reasons = {
        "crashed": run["measured"].get("ok") is False,
        "device": hardware["gpu"] not in DEVICES,
        "precision": parallel.get("precision") not in ("bf16", "fp16", "fp16/bf16", "bf16 (assumed)"),
        "adapters": run.get("adapter") is not None,
        "model given by name": "name" in run["model"] and "layers" not in run["model"],
        "context parallelism": (parallel.get("cp") or 1) > 1,
        "experts": bool(run["model"].get("experts")),
        "recomputation": _recomputation(parallel.get("recompute")) is None,
        "not published": not all(
            parallel.get(key) for key in ("dp", "tp", "pp", "micro_batch", "global_batch")
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _recomputation(text: str | None) -> str | None:
    """Its name of what the source says; None where it has none."""
    words = (text or "none").split(" ")[0]
    return {"none": "NONE", "unspecified": "NONE", "full": "FULL", "selective": "SELECTIVE"}.get(words)


def ask(run: Mapping[str, Any]) -> dict[str, float]:
    """What llm-analysis says of one run; needs the package."""
    from llm_analysis import analysis as peer
    from llm_analysis.config import (
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )

    model, parallel = run["model"], run["parallel"]
    width = model["ffn_hidden"] * (GATED if model.get("gated_mlp") else 1)
    llm = peer.LLMAnalysis(
        ModelConfig(
            name=run["id"],
            num_layers=model["layers"],
            n_head=model["heads"],
            num_key_value_heads=model.get("kv_heads"),
            hidden_dim=model["hidden"],
            vocab_size=model["vocab"],
            max_seq_len=model["seq"],
            ffn_embed_dim=width,
            expansion_ratio=width / model["hidden"],
        ),
        get_gpu_config_by_name(DEVICES[run["hardware"]["gpu"]]),
        get_dtype_config_by_name("w16a16e16"),
        ParallelismConfig(tp_size=parallel["tp"], pp_size=parallel["pp"], dp_size=parallel["dp"]),
    )
    answer = llm.training(
        batch_size_per_gpu=parallel["micro_batch"],
        gradient_accumulation_steps=parallel["global_batch"] // (parallel["dp"] * parallel["micro_batch"]),
        seq_len=model["seq"],
        activation_recomputation=peer.ActivationRecomputation[_recomputation(parallel.get("recompute"))],
        ds_zero=peer.DSZeRO(parallel.get("zero_stage") or 0),
        flash_attn=True,
        mlp_gated_linear_units=bool(model.get("gated_mlp")),
    )
    return {
        "step_time_s": float(f"{answer['latency_per_iter']:.6g}"),
        "memory_gib": float(f"{answer['(weight+op_state+grad+act)_memory_per_gpu'] / 2**30:.6g}"),
    }


def keep_answers(
    path: Path,
    about: Mapping[str, str],
    cannot: Callable[[Mapping[str, Any]], str | None],
    ask: Callable[[Mapping[str, Any]], object],
    refused: str,
) -> None:
    """Ask a peer about every run, and keep in ``path`` what it says ``about`` them.

    ``cannot`` says why it is not asked about one; an answer of None, or a failed assertion, is counted as ``refused``.
    """
    answers: dict[str, object] = {}
    unanswered: dict[str, int] = {}
    for name in FILES:
        for run in map(json.loads, (PUBLISHED / f"{name}.jsonl").read_text().splitlines()):
            reason, answer = cannot(run), None
            if reason is None:
                with suppress(AssertionError):
                    answer = ask(run)
            if answer is not None:
                answers[run["id"]] = answer
            else:
                unanswered[reason or refused] = unanswered.get(reason or refused, 0) + 1
    kept = {**about, "unanswered": dict(sorted(unanswered.items())), "runs": answers}
    path.write_text(json.dumps(kept, indent=0) + "\n")
    print(f"{len(answers)} answered, unanswered: {kept['unanswered']}")


def main() -> None:
    """Ask about every run that the peer can answer, and keep what it says."""
    import logging
    from importlib.metadata import version

    from llm_analysis.logger import logger

    logger.setLevel(logging.ERROR)
    about = {"peer": "llm-analysis", "version": version("llm-analysis"), "command": COMMAND}
    keep_answers(PREDICTIONS, about, cannot, ask, refused="does not fit, it says")


if __name__ == "__main__":
    main()
