"""Cases of our own are measured as the runs that are stored: a setting that one script gains is no other's."""

from types import ModuleType

import judging
import pytest
import tracking
import tracking_adapters
import tracking_autocast
import tracking_checkpoints
import tracking_early_steps
import tracking_eight_bits
import tracking_experts
import tracking_flat
import tracking_replicas
import tracking_stages
import tracking_transformers

from planner.runs.record import parse_run

SCRIPTS = {
    "torch_tracked": tracking,
    "torch_transformers": tracking_transformers,
    "torch_adapters": tracking_adapters,
    "torch_autocast": tracking_autocast,
    "torch_checkpoints": tracking_checkpoints,
    "torch_experts": tracking_experts,
    "torch_stages": tracking_stages,
    "torch_eight_bits": tracking_eight_bits,
    "torch_early_steps": tracking_early_steps,
    "torch_replicas": tracking_replicas,
    "torch_flat": tracking_flat,
}


@pytest.mark.parametrize(("file", "script"), SCRIPTS.items(), ids=list(SCRIPTS))
def test_stored_runs_are_those_of_the_script(file: str, script: ModuleType) -> None:
    rows = judging.load(file)
    assert [row["id"].partition("/")[2] for row in rows] == list(script.CASES)
    for row in rows:
        case = script.row_of(row["id"].partition("/")[2])
        assert not parse_run(case).unknown_fields()
        for part in ("model", "hardware", "parallel"):
            assert case[part].items() >= row[part].items()
