"""What may be asked: shipped names and sizes within limits, read by the planner's own records."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cluster_specs.catalog import list_clusters, load_cluster
from planner.errors import InputError
from planner.models.catalog import load_model
from planner.plans import Job, Pins
from planner.server.asking import Asked


def asked(question: dict[str, Any], **changes: Any) -> Asked:
    return Asked.model_validate({**question, **changes})


def test_a_question_is_that_of_the_command_line(question: dict[str, Any]) -> None:
    model, cluster, job, pins = asked(question, devices=16, pins={"tensor": 2}).question()
    assert model == load_model("llama-3.2-1b")
    assert cluster.model_dump(exclude={"sources"}) == load_cluster("dgx-h100:2").model_dump(
        exclude={"sources"}
    )
    assert (job, pins) == (Job(global_batch=64, seq_len=2048), Pins(tensor=2))


def test_factors_turn_the_hardware(question: dict[str, Any]) -> None:
    plain = asked(question, devices=16).question().cluster
    turned = (
        asked(question, devices=16, network=2, scale_up=0.5, compute=1.5, memory_bandwidth=3)
        .question()
        .cluster
    )
    assert turned.links[-1].bandwidth == 2 * plain.links[-1].bandwidth
    assert turned.links[0].bandwidth == 0.5 * plain.links[0].bandwidth
    assert turned.device.peak_flops_per_second["bf16"] == 1.5 * plain.device.peak_flops_per_second["bf16"]
    assert turned.device.memory_bandwidth == 3 * plain.device.memory_bandwidth


def test_tpus_have_their_usual_stack(question: dict[str, Any]) -> None:
    assert asked(question, cluster="tpu-v5p").question().job.stack == "jax-xla"
    own = {**question["job"], "stack": "torch-fsdp2"}
    assert asked(question, cluster="tpu-v5p", job=own).question().job.stack == "torch-fsdp2"
    assert asked(question).question().job.stack == "torch-fsdp2"


@pytest.mark.parametrize("field", ["model", "cluster"])
@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../../etc/passwd",
        "config.json",
        ".",
        "",
        "\0",
        "llama-3.2-1b/",
        "dgx-h100:2",
        "x" * 99,
    ],
)
def test_a_file_is_no_name(question: dict[str, Any], field: str, name: str) -> None:
    with pytest.raises(InputError, match="unknown"):
        asked(question, **{field: name}).question()


def test_a_file_that_exists_is_not_read(
    question: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    for field in ("model", "cluster"):
        with pytest.raises(InputError, match="unknown"):
            asked(question, **{field: "own.json"}).question()


@given(text=st.text(max_size=40))
def test_only_shipped_names_are_clusters(text: str) -> None:
    question = Asked(model="llama-3.2-1b", cluster=text, devices=8, job=Job(global_batch=8, seq_len=128))
    if text not in [entry.name for entry in list_clusters()]:
        with pytest.raises(InputError):
            question.question()


@pytest.mark.parametrize(
    "changes",
    [
        {"devices": 0},
        {"devices": 10**9},
        {"network": 0},
        {"network": 1e9},
        {"network": "nan"},
        {"job": {"global_batch": -1, "seq_len": 8}},
        {"job": {"global_batch": 8}},
        {"pins": {"tensor": 0}},
        {"pins": {"file": "x"}},
        {"objective": "beauty"},
        {"model": "m" * 1000},
        {"path": "/etc/passwd"},
    ],
)
def test_the_records_refuse_what_makes_no_sense(question: dict[str, Any], changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        asked(question, **changes)


@pytest.mark.parametrize(
    "job", [{"global_batch": 10**7, "seq_len": 8}, {"global_batch": 8, "seq_len": 10**8}]
)
def test_limits_are_named(question: dict[str, Any], job: dict[str, int]) -> None:
    with pytest.raises(InputError, match="this page takes at most"):
        asked(question, job=job).question()


def test_a_size_that_the_cluster_does_not_come_in(question: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="whole number"):
        asked(question, devices=12).question()
