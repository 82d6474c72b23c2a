"""`verify --with xla-tpu`: full programs compiled for slices that are not there, and what is refused."""

from typing import Any

import pytest
from tiny_llama import installed, tiny_model

from cluster_specs.catalog import load_cluster
from planner.errors import InputError, Unsupported
from planner.evaluation import evaluate
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism, Plan
from planner.verification import with_xla
from planner.verification.tools import verify

MODEL = {"hidden_size": 256, "head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 2}
SHARDED = {"data": 4, "zero_stage": 3, "sharding": "FULL_SHARD", "shard_degree": 4, "recompute": "full"}


def tpu_plan(where: str = "tpu-v5e:2x2", **changes: Any) -> Plan:
    plan = Plan(
        model=tiny_model(**MODEL | {"intermediate_size": 512, "vocab_size": 512}),
        cluster=load_cluster(where),
        job=Job(global_batch=4, seq_len=256, stack="jax-xla"),
        plan=Parallelism(**SHARDED),
    )
    return plan.model_copy(update=changes)


@pytest.mark.jax
@pytest.mark.skipif(not installed("libtpu"), reason="libtpu is not installed")
@pytest.mark.parametrize("cluster", ["tpu-v5e:2x2", "tpu-v6e:2x2"])
def test_the_compiler_takes_the_exported_plan(cluster: str) -> None:
    plan = tpu_plan(cluster)
    answer = verify(plan, "xla-tpu")
    assert answer.passed
    found = {c.name: c for c in answer.comparisons}
    parameters = 12 * 2 * 256 * 256 + 2 * 512 * 256  # a lower bound: layers without norms, table and head
    assert found["live memory"].found > 12 * parameters / 4 / 2
    assert found["sent in all"].found > 2 * 2 * parameters * 3 / 4 / 2
    assert found["sent in all"].predicted == pytest.approx(sum(evaluate(plan).communication.values()))


FOUND = {
    "versions": {"jax": "0", "libtpu": "0"},
    "peak_bytes": 8 * 2**30,
    "assigned_bytes": 9 * 2**30,
    "collectives": {"p2p": {"times": 4, "sent_bytes": 100.0}, "all_gather": {"times": 2, "sent_bytes": 50.0}},
}


@pytest.mark.parametrize(("masters", "stored"), [(True, "float32"), (False, "bfloat16")])
def test_weights_without_masters_are_stored_as_they_are_used(
    monkeypatch: pytest.MonkeyPatch, masters: bool, stored: str
) -> None:
    tasks = []
    monkeypatch.setattr(with_xla, "run_program", lambda name, files, task, *a, **k: tasks.append(task))
    job = Job(global_batch=4, seq_len=512, stack="jax-xla", master_weights=masters)
    with_xla.compiled_step(tpu_plan(job=job))
    assert tasks[0]["stored"] == stored


def test_differences_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_xla, "run_program", lambda *a, **k: FOUND)
    answer = verify(tpu_plan(), "xla-tpu")
    assert answer.passed
    assert [c.name for c in answer.comparisons] == [
        "live memory", "with holes", "sent by all_gather", "sent by all_reduce", "sent by all_to_all",
        "sent by reduce_scatter", "sent by send", "sent in all",
    ]  # fmt: skip
    assert answer.comparisons[-1].found == 150
    assert answer.comparisons[3].error is None
    assert any("rings, which count as what they do" in note for note in answer.notes)


def test_a_step_that_the_compiler_refuses_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"versions": {}, "refused": {"peak_bytes": 2e10, "limit_bytes": 1.6e10}}
    monkeypatch.setattr(with_xla, "run_program", lambda *a, **k: refused)
    answer = verify(tpu_plan(), "xla-tpu")
    assert not answer.passed
    assert "expected 1.6e+10, found 2e+10" in answer.failures()
    assert [c.found for c in answer.comparisons] == [2e10]


def test_a_program_that_cannot_be_printed_still_has_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_xla, "run_program", lambda *a, **k: FOUND | {"collectives": None})
    answer = verify(tpu_plan(), "xla-tpu")
    assert answer.passed
    assert [c.name for c in answer.comparisons] == ["live memory", "with holes"]
    assert any("cannot print the program" in note for note in answer.notes)


def test_names_of_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def run(name: str, files: Any, task: Any, *rest: Any, **options: Any) -> Any:
        asked.update(task)
        return FOUND

    monkeypatch.setattr(with_xla, "run_program", run)
    verify(tpu_plan("tpu-v4:1x2x2"), "xla-tpu")
    assert (asked["topology"], asked["slices"], asked["chip_config"]) == ("v4:1x2x2", 1, "megacore")


def test_no_experts_are_no_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of dense models may say so: ``experts`` is 0."""
    monkeypatch.setattr(with_xla, "run_program", lambda *a, **k: FOUND)
    plan = tpu_plan()
    dense = plan.model.model_copy(update={"config": {**plan.model.config, "experts": 0}})
    assert with_xla.compiled_step(plan.model_copy(update={"model": dense})) == FOUND


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"cluster": load_cluster("dgx-h100:1")}, InputError, "compiles for TPU slices; dgx-h100:1 has h100"),
        ({"model": load_model("mixtral-8x7b")}, Unsupported, "no kernel that routes tokens"),
        ({"job": Job(global_batch=4, seq_len=512, optimizer="muon")}, Unsupported, "adamw and sgd, not muon"),
        ({"job": Job(global_batch=4, seq_len=512, precision="fp8")}, Unsupported, "not fp8"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        verify(tpu_plan(**changes), "xla-tpu")
