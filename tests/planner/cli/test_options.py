"""Options become jobs and pins."""

from collections.abc import Callable

import pytest
from typer.testing import Result

from planner.cli.app import COMMANDS
from planner.cli.options import JobOptions, PinOptions
from planner.errors import InputError
from planner.models.catalog import load_model

Cli = Callable[..., Result]

MODEL = load_model("gpt2")


def test_token_batches_become_sequences() -> None:
    assert (
        JobOptions(global_batch=4 * 2**20, seq_len=8192, tokens=True).to_job(MODEL, "dgx-h100:1").global_batch
        == 512
    )
    with pytest.raises(InputError, match="the nearest is 8192"):
        JobOptions(global_batch=10_000, seq_len=8192, tokens=True).to_job(MODEL, "dgx-h100:1")


def test_models_of_images_fix_how_long_an_input_is() -> None:
    assert JobOptions(global_batch=64).to_job(load_model("resnet-50"), "dgx-h100:1").seq_len == 1
    assert JobOptions(global_batch=64).to_job(load_model("vit-l-16"), "dgx-h100:1").seq_len == 197
    with pytest.raises(InputError, match="--seq-len: gpt2 takes sequences of any length"):
        JobOptions(global_batch=64).to_job(MODEL, "dgx-h100:1")


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
