"""Options of ``fit``, whose commonest question names a model and a cluster alone."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.numbers import whole_option
from planner.cli.options import JOB, JobOptions
from planner.cli.sweep_options import USUAL_LENGTH
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.models.model import Model


@dataclass(frozen=True, slots=True)
class FitJobOptions(JobOptions):
    """What is trained, of which the batch and the length may be left open."""

    global_batch: Annotated[
        str,
        typer.Option(
            "--global-batch",
            help="Sequences per optimizer step; by default one a device.",
            rich_help_panel=JOB,
            metavar="INTEGER",
            show_default=False,
        ),
    ] = ""
    seq_len: Annotated[
        int | None,
        typer.Option(
            "--seq-len",
            help="Tokens per sequence; by default 8192, or what the model takes.",
            rich_help_panel=JOB,
            parser=whole_option,
            metavar="INTEGER",
        ),
    ] = None

    def filled(self, model: "Model", cluster: str) -> tuple[JobOptions, tuple[str, ...]]:
        """The options with nothing left open, and what was assumed; ``InputError`` for ``--tokens`` of no batch."""
        from cluster_specs.catalog import load_cluster
        from planner.models.catalog import counted, sequence_length, usual_length

        whole, assumed = self, list[str]()
        if self.seq_len is None and sequence_length(model) is None:
            length = usual_length(model, USUAL_LENGTH)
            whole = replace(whole, seq_len=length)
            assumed.append(f"sequences of {length} tokens (--seq-len)")
        if not self.global_batch:
            if self.tokens:
                raise InputError("--tokens says what --global-batch counts: give that, too")
            devices = load_cluster(cluster).num_devices
            whole = replace(whole, global_batch=str(devices))
            inputs = "sequence" if counted(model) == "tokens" else counted(model).removesuffix("s")
            assumed.append(f"a global batch of {devices}, one {inputs} a device (--global-batch)")
        return whole, tuple(assumed)
