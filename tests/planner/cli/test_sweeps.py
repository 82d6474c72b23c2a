"""``what-if``, ``size`` and ``explain --outlook`` from the shell."""

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Cli = Callable[..., Result]

SWEEP = (
    "what-if",
    "gpt2",
    "dgx-h100",
    "--devices",
    "4,8",
    "--seq-len",
    "1024",
    "--batch",
    "64",
    "--pipeline",
    "1",
)
SIZE = (
    "size",
    "dgx-h100",
    "--model",
    "gpt2",
    "--batch-tokens",
    "196608",
    "--seq-len",
    "1024",
    "--most-devices",
    "64",
)


def test_a_sweep_as_table_json_and_files(cli: Cli, tmp_path: Path) -> None:
    table, data = tmp_path / "a.csv", tmp_path / "a.json"
    written = ("-o", str(table), "-o", str(data))
    shown = cli(*SWEEP, "--set", "network=1x,2x", "--set", "tensor=1,free", *written)
    assert shown.exit_code == 0, shown.output
    assert "8 points, 8 with a plan" in shown.output
    with table.open() as stream:
        rows = list(csv.DictReader(stream))
    answer = json.loads(data.read_text())
    assert answer["schema"] == "meshwright/sweep/1"
    assert [row["asked.network"] for row in rows] == ["1x", "1x", "2x", "2x"] * 2
    assert [float(row["cost"]) for row in rows] == [p["economics"]["cost"] for p in answer["points"]]


def test_json_is_all_there_is_on_stdout(cli: Cli) -> None:
    result = cli(*SWEEP, "--json", "--tokens", "3e11", "--grid", "0.4", "--price", "2", "--spares", "1")
    answer = json.loads(result.stdout)
    assert answer["terms"]["tokens"] == 3e11
    spent = answer["points"][1]["economics"]
    assert spent["devices"] == 16
    assert spent["cost"] == pytest.approx(2 * spent["device_hours"])
    assert spent["carbon_kg"] == pytest.approx(0.4 * spent["energy_j"] / 3.6e6)


def test_where_nothing_is_planned_no_prices_are_named(cli: Cli) -> None:
    arguments = ("llama-3.2-1b", "tpu-v5p:2x2x1", "--batch", "8", "--seq-len", "512", "--lora", "8")
    result = cli("what-if", *arguments)
    text = result.stdout
    assert result.exit_code == 2
    assert "not for stack jax-xla" in " ".join(text.split())
    assert "1e+12 tokens" in text
    assert "prices in" not in text


def test_a_sweep_in_which_nothing_fits_ends_as_a_plan_that_does_not(cli: Cli) -> None:
    small = ("llama-3.1-70b", "dgx-a100-80g:1", "--batch", "8", "--seq-len", "4096", "--json")
    result = cli("what-if", *small)
    assert result.exit_code == 3
    assert [point["status"] for point in json.loads(result.stdout)["points"]] == ["infeasible"]


def test_a_point_of_a_sweep_is_what_plan_says(cli: Cli) -> None:
    question = ("gpt2", "dgx-h100:1", "--seq-len", "1024", "--global-batch", "64", "--json")
    [point] = json.loads(cli("what-if", *question).stdout)["points"]
    for top in ("1", "5"):
        assert json.loads(cli("plan", *question, "--top", top).stdout)["estimate"] == point["estimate"]


@pytest.mark.parametrize("knob", ["scale-up", "memory-bandwidth"])
def test_hardware_numbers_have_the_names_that_the_help_gives(cli: Cli, knob: str) -> None:
    assert cli(*SWEEP, "--set", f"{knob}=1x", "--json").exit_code == 0


def test_settings_have_the_names_of_options_too(cli: Cli) -> None:
    found = [cli(*SWEEP, "--set", f"{name}=0.1", "--json") for name in ("headroom", "memory_headroom")]
    axes = [json.loads(result.stdout)["axes"] for result in found]
    assert axes[0] == axes[1]
    assert axes[0]["memory_headroom"] == [0.1]


def test_resuming_plans_only_the_rest(cli: Cli, tmp_path: Path) -> None:
    journal = tmp_path / "points.jsonl"
    first = cli(*SWEEP, "--json", "--resume", str(journal))
    lines = journal.read_text()
    again = cli(*SWEEP, "--json", "--resume", str(journal))
    assert again.stdout == first.stdout
    assert journal.read_text() == lines


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("what-if", "gpt2", "dgx-h100", "--devices", "8"), "give the global batch"),
        ((*SWEEP, "--devices", "8,x"), "not a list of whole numbers"),
        ((*SWEEP, "--devices", "8,,16"), "empty value"),
        ((*SWEEP, "--set", "network"), "write it as NAME=VALUE"),
        ((*SWEEP, "--set", "netwrk=2x"), "unknown input 'netwrk'; did you mean network?"),
        ((*SWEEP, "--set", "foo=1x"), "network, latency, or a dotted path of the cluster"),
        ((*SWEEP, "--set", "links.ib.bandwidth=2x"), "unknown field 'ib'"),
        ((*SWEEP, "--set", "pipeline=1,2"), "both fixed and swept"),
        ((*SWEEP, "--engine", "dask"), "unknown engine 'dask'"),
        ((*SWEEP, "--restart-time", "soon"), "'soon' is not a quantity"),
        ((*SWEEP, "--price-kind", "stolen"), "--price-kind: must be"),
        ((*SWEEP, "--tokens", "-1"), "tokens"),
        ((*SWEEP, "--stragglers", "1.5"), "--stragglers: must be"),
        ((*SWEEP, "-o", "sweep.xlsx"), "one of .json, .csv, .parquet"),
        ((*SIZE, "--deadline", "9d"), "one of --tokens, --samples"),
        ((*SIZE, "--tokens", "1e9", "--samples", "1e6", "--deadline", "9d"), "one of --tokens, --samples"),
        ((*SIZE, "--samples", "0", "--deadline", "9d"), "--samples 0: give a number above 0"),
        ((*SIZE, "--tokens", "1e11"), "deadline or a budget"),
        ((*SIZE, "--tokens", "1e11", "--deadline", "soon"), "--deadline: 'soon' is not a quantity of time"),
        ((*SWEEP, "--device-mtbf", "long"), "--device-mtbf: 'long' is not a quantity of time"),
        (
            (*SIZE, "--tokens", "1e11", "--deadline", "9d", "--precision", "bf16,fp8"),
            "one value of precision",
        ),
        ((*SIZE, "--tokens", "1e11", "--deadline", "9d", "--devices", "8"), "size chooses the devices"),
        ((*SIZE, "--compute", "1e20", "--law", "moore", "--deadline", "9d"), "unknown scaling law"),
    ],
)
def test_bad_input_is_one_sentence(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_size_that_meets_the_goal(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    result = cli(*SIZE, "--tokens", "3e11", "--deadline", "4d", "--budget", "1e6", "-o", str(plan))
    assert result.exit_code == 0, result.output
    assert "the cheapest of" in result.output
    chosen = json.loads(plan.read_text())
    assert chosen["model"]["name"] == "gpt2"
    assert any(stage["sharding"] for stage in chosen["plan"]["stages"])


def test_a_length_that_nobody_names_is_one_that_the_model_takes(cli: Cli) -> None:
    """GPT-2 has 1024 learned positions, OPT 2048 in a table of 2050 rows."""
    for model, tokens in (("gpt2", 1024), ("opt-125m", 2048)):
        wanted = ("--model", model, "--tokens", "1e9", "--deadline", "30d", "--most-devices", "8")
        answer = json.loads(cli("size", "dgx-h100", *wanted, "--json").stdout)
        assert f"sequences of {tokens} tokens" in answer["assumed"]
        assert {point["inputs"]["seq_len"] for point in answer["tried"]} == {tokens}


@pytest.mark.parametrize(("model", "tokens"), [("resnet-50", 1), ("vit-b-16", 197)])
def test_images_are_counted_as_such(cli: Cli, model: str, tokens: int) -> None:
    """A ResNet's have a token each, a ViT's as many as patches and one for the class."""
    asked = ("dgx-h100", "--model", model, "--deadline", "9d", "--most-devices", "8", "--json")
    answers = [
        json.loads(cli("size", *asked, *amount).stdout)
        for amount in (("--samples", "1e6"), ("--tokens", str(tokens * 10**6)))
    ]
    assert answers[0] == answers[1]
    assert answers[0]["assumed"] == ["a global batch of 256 images, as ResNets were first trained with"]
    (tried,) = answers[0]["tried"]
    steps = math.ceil(10**6 / 256)
    assert tried["economics"]["time_to_train_s"] == pytest.approx(
        steps * tried["estimate"]["step_time_s"], rel=0.02
    )


def test_a_size_that_misses_it_exits_with_3(cli: Cli) -> None:
    result = cli(*SIZE, "--tokens", "3e11", "--deadline", "4d", "--budget", "10", "--json")
    assert result.exit_code == 3
    answer = json.loads(result.stdout)
    assert (answer["schema"], answer["meets"]) == ("meshwright/size/1", False)
    assert "Nearest" in answer["verdict"]


def test_thresholds_hold_for_sweeps(cli: Cli) -> None:
    assert cli(*SWEEP, "--fail-if", "searches > 1").exit_code == 4
    assert cli(*SWEEP, "--fail-if", "searches > 2").exit_code == 0


def test_explain_has_numbers_for_programs(cli: Cli, run_file: str) -> None:
    answer = json.loads(cli("explain", run_file, "--json").stdout)
    assert answer["sensitivity"][0]["number"] == "compute"
    assert answer["economics"]["goodput"] < 1
    assert answer["outlook"] is None
    assert "What it costs" in answer["explanation"]


def test_explain_looks_around(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = (
        "plan",
        "gpt2",
        "dgx-h100:1",
        "--global-batch",
        "32",
        "--seq-len",
        "1024",
        "-o",
        str(plan),
        "--json",
    )
    assert cli(*made).exit_code == 0
    answer = json.loads(cli("explain", str(plan), "--outlook", "--json").stdout)
    sizes = {size["devices"]: size for size in answer["outlook"]["sizes"]}
    found = json.loads(plan.read_text())["estimate"]["tokens_per_s"]
    assert sizes[8]["tokens_per_s"] == pytest.approx(found)
    assert answer["outlook"]["longest_seq_len"] == 1024
    assert "What would change it" in answer["explanation"]


def test_points_for_which_no_pipeline_was_looked_at_are_counted(cli: Cli) -> None:
    free = SWEEP[: SWEEP.index("--pipeline")]
    for pin, said in (
        (("--objective", "cost"), True),
        (("--objective", "cost", "--pipeline", "1"), False),
        ((), False),
    ):
        shown = cli(*free, "--devices", "8,16", *pin)
        assert ("without pipelines: 1 point of several nodes" in " ".join(shown.output.split())) is said


def test_why_sizes_have_no_plan_is_said_once_for_a_kind(cli: Cli) -> None:
    shown = cli("what-if", "gpt2", "dgx-v100", "dgx-h100", *SWEEP[3:])
    assert shown.exit_code == 0, shown.output
    said = " ".join(shown.output.split())
    assert "dgx-v100, 4, 8 devices: device 'v100-sxm2-32g' has no bf16 rate" in said
    assert said.count("has no bf16 rate") == 1


def test_sizes_are_planned_with_the_pins_that_are_given(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "chosen.json"
    asked = (*SIZE, "--tokens", "1e9", "--deadline", "1d", "--tensor", "2", "--micro-batch", "1")
    answer = json.loads(cli(*asked, "-o", str(file), "--json").stdout)
    planned = [point["plan"] for point in answer["tried"] if point["plan"]]
    assert planned
    assert all((each["tensor"], each["micro_batch"]) == (2, 1) for each in planned)
    assert json.loads(file.read_text())["plan"]["tensor"] == 2


def test_what_is_no_number_is_said_plainly(cli: Cli) -> None:
    result = cli(*SIZE, "--tokens", "15T", "--deadline", "9d")
    assert (result.exit_code, "'15T' is no number; write 15 or 15e12" in result.output) == (2, True)
