"""`meshwright simulate`, `parameter-server` and `token-slices`; and `--schedule` where plans are read."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from planner import plan
from planner.pipeline.generators import generate

Cli = Callable[..., Result]


def answer(result: Result) -> dict:
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", ["pipedream", "pipedream-vertical", "pipedream-2bw", "ampnet"])
def test_pipelines_that_never_flush_run_as_the_docs_ask_for_them(cli: Cli, name: str) -> None:
    more = {"pipedream-2bw": ("--per-update", "4"), "ampnet": ("--max-active", "4")}.get(name, ())
    found = answer(cli("simulate", "--schedule", name, *more, "--json"))
    assert found["makespan_s"] * found["microbatches_per_s"] > 32


def test_the_published_bubble_of_1f1b(cli: Cli) -> None:
    """Zero bubble, table 5: 6.2B on 8 ranks, 24 micro-batches, 1F1B: 2480.2 ms, 23.47 % idle."""
    times = (
        "--forward",
        "29.718",
        "--backward-input",
        "29.444",
        "--backward-weight",
        "19.927",
        "--p2p",
        "0.527",
    )
    found = answer(
        cli("simulate", "--schedule", "1f1b", "--ranks", "8", "--microbatches", "24", *times, "--json")
    )
    assert round(found["makespan_s"]) == 2480
    assert round(found["bubble_fraction"], 4) == 0.2347
    assert [row["in_flight"] for row in found["ranks"]] == list(range(8, 0, -1))


def test_automatic_is_never_worse_and_can_be_written(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "found.csv"
    options = (
        "--ranks",
        "3",
        "--microbatches",
        "6",
        "--forward",
        "1,2,1",
        "--backward-weight",
        "0.5",
        "--json",
    )
    named = [
        answer(cli("simulate", "--schedule", name, *options))["makespan_s"]
        for name in ("1f1b", "zb-h1", "gpipe")
    ]
    found = answer(cli("simulate", "--schedule", "automatic", *options, "--csv", str(path)))
    assert found["makespan_s"] <= min(named)
    assert found["files"] == [str(path)]
    again = answer(
        cli("simulate", "--schedule", str(path), "--forward", "1,2,1", "--backward-weight", "0.5", "--json")
    )
    assert again["makespan_s"] == found["makespan_s"]


def test_automatic_takes_the_better_placement(cli: Cli) -> None:
    """With two stages on each rank it is no worse than ZB-V, which runs them down the ranks and back."""
    shape = ("--ranks", "4", "--virtual-stages", "2", "--microbatches", "8", "--memory", "8", "--json")
    times = ("--forward", "1,1,1,1,1,1,1,2", "--p2p", "0.2")
    named = [
        answer(cli("simulate", "--schedule", name, *shape, *times))["makespan_s"]
        for name in ("zb-v", "v-half", "v-min")
    ]
    assert answer(cli("simulate", "--schedule", "automatic", *shape, *times))["makespan_s"] <= min(named)


def test_the_papers_own_scheduler_is_met(cli: Cli) -> None:
    """Zero bubble, table 5: 6.2B, 24 micro-batches, ZB-2p: 0.29 % idle; no named schedule is below 5 %."""
    found = answer(
        cli(
            *("simulate", "--schedule", "automatic", "--steady", "--ranks", "8", "--microbatches", "24"),
            *("--forward", "29.718", "--backward-input", "29.444", "--backward-weight", "19.927"),
            *("--p2p", "0.527", "--memory", "16", "--kept-for-weights", "0.432", "--json"),
        )
    )
    assert found["steady_bubble_fraction"] < 0.00295
    assert max(row["held_microbatches"] for row in found["ranks"]) <= 16


def test_memory_that_a_schedule_does_not_keep_to_is_said(cli: Cli) -> None:
    assert cli("simulate", "--schedule", "zb-h1", "--memory", "4,4,4,4").exit_code == 0
    result = cli("simulate", "--schedule", "zb-h2", "--memory", "7,5,7,7", "--kept-for-weights", "0.5")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "zb-h2 holds 6 micro-batches on rank 1, which has room for 5" in result.stderr


def test_blocking_and_queues_slow_pipelines_that_never_flush(cli: Cli) -> None:
    shape = ("simulate", "--schedule", "pipedream", "--microbatches", "32", "--p2p", "1.2", "--json")
    rates = [answer(cli(*shape, *more))["microbatches_per_s"] for more in ((), ("--blocking",))]
    assert rates[1] < rates[0]


def test_traces_count_what_is_held(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    answer(cli("simulate", "--schedule", "pipedream", "--microbatches", "32", "-o", str(path), "--json"))
    counted = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "C" and e["pid"] == 0]
    versions = [e["args"]["versions"] for e in counted if e["name"] == "weights"]
    activations = [e["args"]["micro-batches"] for e in counted if e["name"] == "activations"]
    assert (versions[0], max(versions), activations[-1], max(activations)) == (1, 4, 0, 4)


def test_memory_bounds_what_automatic_holds(cli: Cli) -> None:
    found = answer(cli("simulate", "--schedule", "automatic", "--memory", "2", "--json"))
    assert max(row["in_flight"] for row in found["ranks"]) <= 2


def test_pipedream_keeps_a_version_for_every_stage_behind(cli: Cli) -> None:
    found = answer(cli("simulate", "--schedule", "pipedream", "--microbatches", "32", "--json"))
    assert [row["weight_versions"] for row in found["stages"]] == [4, 3, 2, 1]
    assert [row["staleness"] for row in found["stages"]] == [3, 2, 1, 0]
    assert found["microbatches_per_s"] == pytest.approx(1 / 3)


def test_one_port_costs_time_where_links_are_slow(cli: Cli) -> None:
    options = (
        "simulate",
        "--schedule",
        "gpipe",
        "--ranks",
        "2",
        "--microbatches",
        "4",
        "--p2p",
        "3",
        "--json",
    )
    free, queued = answer(cli(*options)), answer(cli(*options, "--one-port"))
    assert queued["makespan_s"] > free["makespan_s"]


def test_workers_that_wait_for_the_slowest(cli: Cli) -> None:
    """Three workers of 1 s and one of 2 s, without spread: 4 iterations every 2 s, or each at its own speed."""
    found = answer(cli("parameter-server", "--seconds", "1,1,1,2", "--spread", "0", "--json"))
    rows = {row["bound"]: row for row in found["bounds"]}
    assert rows[0]["iterations_per_s"] == pytest.approx(2.0, rel=0.01)
    assert rows[None]["iterations_per_s"] == pytest.approx(3.5, rel=0.01)
    assert rows[0]["max_staleness"] == 0
    assert rows[3]["max_staleness"] == 3
    assert rows[None]["waiting_fraction"] == 0


def test_slices_are_no_worse_than_equal_ones(cli: Cli) -> None:
    found = answer(
        cli(
            *("token-slices", "llama-3.2-1b", "dgx-h100:1", "--global-batch", "1", "--seq-len", "16384"),
            *("--pipeline", "4", "--json"),
        )
    )
    assert sum(found["slices"]) == 16384
    assert found["latency_s"] <= found["equal_latency_s"] < found["whole_latency_s"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("simulate", "--forward", "1,x"), "--forward '1,x': 'x' is no number"),
        (("simulate", "--forward", "1,2"), "--forward has 2 numbers; give one, or one for each of 4"),
        (("simulate", "--forward", "-1"), "must be finite and not negative"),
        (("simulate", "--schedule", "best"), "unknown pipeline schedule 'best'"),
        (("simulate", "--schedule", "no.csv"), "no.csv: no such file"),
        (("simulate", "--schedule", "mine.py"), "as mine.py:FUNCTION"),
        (("schedules", "dapple"), "here it is 1f1b"),
        (
            (
                *("plan", "llama-3.2-1b", "dgx-h100:1", "--global-batch", "8", "--seq-len", "512"),
                *("--schedule", "pipedream"),
            ),
            "meshwright simulate --schedule pipedream runs it",
        ),
        (("simulate", "--per-update", "2"), "--per-update is for pipelines that never flush"),
        (("simulate", "--schedule", "zb-h1", "--steady"), "--steady is for the automatic schedule"),
        (("simulate", "--schedule", "pipedream", "--max-active", "3"), "--max-active is for ampnet"),
        (("simulate", "--schedule", "pipedream", "--memory", "3"), "--memory is for schedules that flush"),
        (
            ("simulate", "--schedule", "ampnet", "--microbatches", "32", "--max-active", "0"),
            "at least one microbatch must be in flight",
        ),
        (("simulate", "--schedule", "pipedream", "--microbatches", "8"), "say little of a steady state"),
        (
            (
                *("simulate", "--schedule", "ampnet", "--microbatches", "32", "--forward", "0"),
                *("--backward-input", "0", "--backward-weight", "0"),
            ),
            "stages take no time",
        ),
        (("parameter-server", "--seconds", "1,0"), "iterations take no time"),
        (("parameter-server", "--bounds", "0,x"), "--bounds '0,x'"),
        (("parameter-server", "--seconds", "-1"), "not negative"),
        *(
            (
                ("token-slices", of[0], "dgx-h100:1", "--global-batch", "1", "--pipeline", degree, *of[1:]),
                message,
            )
            for of, degree, message in [
                (
                    ("gpt2", "--seq-len", "1024"),
                    "16",
                    "needs 16 devices, which do not divide the 8 of dgx-h100:1",
                ),
                (("gpt2", "--seq-len", "1024"), "3", "needs 3 devices, which do not divide the 8"),
                (("resnet-50",), "2", "resnet-50 cannot be cut into slices: some tokens need those"),
                (("bert-large", "--seq-len", "512"), "2", "bert-large cannot be cut into slices"),
            ]
        ),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, command: tuple[str, ...], message: str) -> None:
    result = cli(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_reports_are_readable(cli: Cli) -> None:
    assert "rank 0 |FFFF" in cli("simulate").stdout
    assert "bulk (BSP)" in cli("parameter-server").stdout
    assert "weight versions" in cli("simulate", "--schedule", "ampnet", "--microbatches", "32").stdout


def test_a_schedule_of_the_users_own(cli: Cli, piped: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(str(generate("zb-h1", 4, 1, 8)))
    own = answer(cli("evaluate", piped, "--schedule", str(path), "--json"))
    named = answer(cli("evaluate", piped, "--schedule", "zb-h1", "--json"))
    assert own["estimate"] == named["estimate"]
    drawn = cli("timeline", piped, "--schedule", str(path))
    assert set("".join(line.split("|")[1] for line in drawn.stdout.splitlines())) == set("FIW.")
    in_run = tmp_path / "mine.toml"
    in_run.write_text(Path(piped).read_text() + 'schedule = "mine.csv"\n')
    assert answer(cli("evaluate", str(in_run), "--json"))["estimate"] == named["estimate"]


def test_automatic_is_no_slower_than_the_plan(cli: Cli, piped: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    before = answer(cli("evaluate", piped, "--json"))["estimate"]
    after = answer(cli("evaluate", piped, "--schedule", "automatic", "--json", "-o", str(path)))["estimate"]
    assert after["step_time_s"] < before["step_time_s"]
    assert answer(cli("evaluate", str(path), "--json"))["estimate"] == after


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,1F0\n", "it has to run F and B"),
        ("hello, world\n", "cannot read pipeline action 'hello'"),
        ("0F0,0B0\n1F0,1B0\n", "needs exactly 1 stages per rank|needs 2 ranks"),
    ],
)
def test_a_broken_schedule_is_named(cli: Cli, piped: str, tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    result = cli("evaluate", piped, "--schedule", str(path))
    assert result.exit_code == 2
    assert any(part in result.stderr for part in message.split("|")), result.stderr


MINE = """
def mine(ranks, virtual_stages, microbatches):
    forward = [[f"{r}F{k}" for k in range(microbatches)] for r in range(ranks)]
    return [row + [f"{r}B{k}" for k in reversed(range(microbatches))] for r, row in enumerate(forward)]

def broken(ranks, virtual_stages, microbatches):
    return 1 / 0

def short(ranks, virtual_stages, microbatches):
    return mine(ranks, virtual_stages, microbatches - 1)

def nothing(ranks, virtual_stages, microbatches):
    return None
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(MINE)
    return str(path)


def test_a_function_is_a_schedule(cli: Cli, own: str, piped: str, tmp_path: Path) -> None:
    options = ("--ranks", "4", "--microbatches", "8", "--json")
    found, known = (
        answer(cli("simulate", "--schedule", name, *options)) for name in (f"{own}:mine", "terapipe")
    )
    assert found["makespan_s"] == known["makespan_s"]
    assert found["ranks"] == known["ranks"]
    path = tmp_path / "plan.json"
    judged = answer(cli("evaluate", piped, "--schedule", f"{own}:mine", "--json", "-o", str(path)))
    assert judged["plan"]["schedule"].startswith("0F0,0F1,")
    # The plan holds what the function made: nobody needs the file any more.
    Path(own).unlink()
    again = answer(cli("evaluate", str(path), "--json"))
    assert again["estimate"] == judged["estimate"]


def test_a_plan_can_be_pinned_to_a_function(cli: Cli, own: str) -> None:
    job = ("llama-3.2-1b", "dgx-h100:1", "--global-batch", "16", "--seq-len", "2048", "--json", "--quiet")
    numbers = ("--pipeline", "4", "--data", "2", "--micro-batch", "1")
    found = answer(cli("plan", *job, *numbers, "--schedule", f"{own}:mine"))
    assert found["plan"]["num_microbatches"] == 8
    assert found["plan"]["schedule"].startswith("0F0,0F1,")
    refused = cli("plan", *job, "--schedule", f"{own}:mine")
    assert refused.exit_code == 2
    assert "pin pipeline, data and micro-batch" in refused.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "broken",
            "schedule broken failed for 2 ranks with 1 stages each and 4 micro-batches: ZeroDivisionError",
        ),
        ("short", "made 2 ranks with 2 stages in all and 3 micro-batches"),
        ("nothing", "give a list of actions for each rank"),
        ("absent", "has no function 'absent'; it has broken, mine, nothing, short"),
    ],
)
def test_functions_that_make_no_schedule_are_refused(cli: Cli, own: str, name: str, message: str) -> None:
    refused = cli("simulate", "--schedule", f"{own}:{name}", "--ranks", "2", "--microbatches", "4")
    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())
    assert "Traceback" not in refused.stderr


def test_the_api_takes_a_function_too() -> None:
    def mine(ranks: int, virtual_stages: int, microbatches: int) -> str:
        return str(generate("1f1b", ranks, virtual_stages, microbatches))

    numbers = {"pipeline": 4, "data": 2, "micro_batch": 1}
    job = {"global_batch": 16, "seq_len": 2048}
    own, named = (
        plan("llama-3.2-1b", "dgx-h100:1", **job, **numbers, schedule=schedule, top=1)
        for schedule in (mine, "1f1b")
    )
    assert own.estimate is not None
    assert named.estimate is not None
    assert own.estimate.step_time_s == named.estimate.step_time_s
