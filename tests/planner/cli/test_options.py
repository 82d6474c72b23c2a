"""Options become jobs and pins."""

from collections.abc import Callable

import pytest
from typer.testing import Result

from planner.cli.app import COMMANDS
from planner.cli.numbers import share_option, whole_number
from planner.cli.options import JobOptions, PinOptions
from planner.errors import InputError
from planner.models.catalog import load_model

Cli = Callable[..., Result]

MODEL = load_model("gpt2")


def test_token_batches_become_sequences() -> None:
    assert (
        JobOptions(global_batch="4194304", seq_len=8192, tokens=True).to_job(MODEL, "dgx-h100:1").global_batch
        == 512
    )
    with pytest.raises(InputError, match="the nearest is 8192"):
        JobOptions(global_batch="10000", seq_len=8192, tokens=True).to_job(MODEL, "dgx-h100:1")


@pytest.mark.parametrize(
    ("text", "number"), [("1024", 1024), ("4e6", 4_000_000), ("9007199254740993", 2**53 + 1)]
)
def test_whole_numbers_are_read_as_they_are_written(text: str, number: int) -> None:
    assert whole_number("--global-batch", text) == number


@pytest.mark.parametrize(("text", "share"), [("0.05", 0.05), ("5%", 0.05), (0.05, 0.05)])
def test_shares_are_read_with_a_percent_sign_and_without(text: str | float, share: float) -> None:
    assert share_option(text) == pytest.approx(share)


def test_what_is_no_share_is_refused_in_our_words(cli: Cli) -> None:
    result = cli("plan", "gpt2", "dgx-h100:1", "--global-batch", "8", "--headroom", "some")
    assert result.exit_code == 2
    assert "'some' is no share; write 0.05 or 5%" in " ".join(result.stderr.split())


def test_a_batch_without_end_is_refused(cli: Cli) -> None:
    result = cli("plan", "gpt2", "dgx-h100:1", "--global-batch", "1e30", "--seq-len", "1024")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(
        "error: --global-batch: must be less than or equal to 1000000000000, found 1"
    )


@pytest.mark.parametrize("text", ["64.5", "many", "inf", "nan", ""])
def test_what_is_no_whole_number_is_refused_in_our_words(cli: Cli, text: str) -> None:
    result = cli("plan", "gpt2", "dgx-h100:1", "--global-batch", text, "--seq-len", "1024")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: --global-batch {text!r} is no whole number; write 1024 or 4e6\n"


def test_sequences_are_as_long_as_they_are_written(cli: Cli) -> None:
    """``4e3`` is 4000, here longer than the table of positions that refuses it; half a token is none."""
    short = cli("plan", "gpt2", "dgx-h100:1", "--global-batch", "8", "--seq-len", "4e3")
    assert (short.exit_code, "a sequence of 4000 tokens is longer" in short.stderr) == (2, True)
    half = cli("plan", "gpt2", "dgx-h100:1", "--global-batch", "8", "--seq-len", "0.5")
    assert half.exit_code == 2
    assert "'0.5' is no whole number; write 1024 or 4e6" in " ".join(half.stderr.split())


def test_models_of_images_fix_how_long_an_input_is() -> None:
    assert JobOptions(global_batch="64").to_job(load_model("resnet-50"), "dgx-h100:1").seq_len == 1
    assert JobOptions(global_batch="64").to_job(load_model("vit-l-16"), "dgx-h100:1").seq_len == 197
    with pytest.raises(InputError, match="--seq-len: gpt2 takes sequences of many lengths"):
        JobOptions(global_batch="64").to_job(MODEL, "dgx-h100:1")


def test_no_axis_pins_its_degree_to_one() -> None:
    assert PinOptions(no_pipeline=True, tensor=8).to_pins().pipeline == 1
    assert PinOptions().to_pins().pipeline is None
    with pytest.raises(InputError, match="--no-tensor contradicts --tensor 8"):
        PinOptions(no_tensor=True, tensor=8).to_pins()


def test_offload_none_forbids_offload() -> None:
    assert PinOptions(offload=["none"]).to_pins().offload == ()
    assert PinOptions().to_pins().offload is None


@pytest.mark.parametrize("command", [f.__name__.replace("_", "-") for fs in COMMANDS.values() for f in fs])
def test_every_command_has_help_json_and_quiet(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.exit_code == 0
    assert "--json" in result.output
    assert "--quiet" in result.output


@pytest.mark.parametrize(
    ("cluster", "said", "stack"),
    [
        ("dgx-h100:1", None, "torch-fsdp2"),
        ("tpu-v5e:4x4", None, "jax-xla"),
        ("tpu-v5e:4x4", "torch-fsdp2", "torch-fsdp2"),
    ],
)
def test_the_usual_software_of_a_device_unless_another_is_named(
    cluster: str, said: str | None, stack: str
) -> None:
    assert JobOptions(global_batch=8, seq_len=8192, stack=said).to_job(MODEL, cluster).stack == stack
