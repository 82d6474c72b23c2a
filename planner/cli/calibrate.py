"""The command that turns measurements into a cluster file."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner.cli.catalogues import complete_clusters
from planner.cli.files import print_json, write_files
from planner.cli.options import OutputOptions
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError, UnknownName

if TYPE_CHECKING:
    from planner.calibration.fitting import Calibration
    from planner.calibration.measurements import Measurement
    from planner.calibration.microbenchmarks import Device

DEVICES = ("cpu", "cuda")


def calibrate(
    cluster: Annotated[
        str,
        typer.Argument(
            help="The shipped cluster that was measured, without its size (dgx-h100).",
            autocompletion=complete_clusters,
        ),
    ],
    output: OutputOptions,
    here: Annotated[
        bool,
        typer.Option(
            "--measure", help="Measure this machine now, under torchrun its collectives too (PyTorch)."
        ),
    ] = False,
    device: Annotated[str, typer.Option("--device", help="What --measure measures: cpu or cuda.")] = "cuda",
    nccl_log: Annotated[
        list[Path] | None, typer.Option("--nccl-log", help="Output of nccl-tests; may be repeated.")
    ] = None,
    collective: Annotated[
        str | None, typer.Option("--collective", help="Of logs that do not say which: all_gather, ...")
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option("--data", help="JSON lines of measurements; may be repeated.")
    ] = None,
    path: Annotated[Path | None, typer.Option("--output", "-o", help="Cluster file to write.")] = None,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write what was measured as JSON lines.")
    ] = None,
) -> None:
    """Fit a cluster's constants to measurements, and write them as a cluster file that every command takes.

    meshwright calibrate dgx-h100 --measure --nccl-log all_reduce.log -o mine.toml
    """
    from planner.calibration.files import to_toml
    from planner.calibration.fitting import calibrate as fit
    from planner.calibration.fitting import misfits
    from planner.calibration.measurements import to_json_lines

    if path is not None:
        _check_is_toml(path)
    found = _logged(nccl_log or [], collective, data or [])
    if here:
        measured = _measured(device, output.quiet)
        if measured is None:
            return  # another rank of torchrun reports
        found += measured
    answer = fit(cluster, found)
    if not output.quiet:
        _warn_of_others(nccl_log or [], cluster)
    if not (output.quiet or output.json):
        sys.stderr.writelines(f"warning: {said}\n" for said in misfits(answer))
    files = {}
    if path is not None:
        files[path] = to_toml(answer)
    if save is not None:
        files[save] = to_json_lines(found)
    write_files(files)
    _show(answer, tuple(map(str, files)), output)


def _check_is_toml(path: Path) -> None:
    """A cluster file is read as its name ends; a pipe or a device may have any name."""
    if path.suffix.lower() != ".toml" and (path.is_file() or not path.exists()):
        raise InputError(f"--output {path}: a calibrated cluster is written as TOML; end its name with .toml")


def _logged(logs: list[Path], collective: str | None, files: list[Path]) -> "tuple[Measurement, ...]":
    from cluster_specs.texts import read_text
    from planner.calibration.measurements import parse_measurements
    from planner.calibration.nccl_log import parse_nccl_log

    found: tuple[Measurement, ...] = ()
    for path in logs:
        found += parse_nccl_log(read_text(path), str(path), collective)
    for path in files:
        found += parse_measurements(read_text(path), str(path))
    return found


def _warn_of_others(logs: list[Path], cluster: str) -> None:
    """Of logs from devices that the cluster has not."""
    from cluster_specs.catalog import load_cluster, load_device
    from cluster_specs.texts import read_text
    from planner.calibration.nccl_log import logged_devices

    own = load_cluster(cluster).device.name
    for path in logs:
        for name in logged_devices(read_text(path)):
            with suppress(UnknownName):
                if load_device(name).name != own:
                    sys.stderr.write(f"warning: {path} is of {name}, {cluster} has {own}\n")


def _measured(device: str, quiet: bool) -> "tuple[Measurement, ...] | None":
    from planner.calibration.microbenchmarks import measure

    if device not in DEVICES:
        raise InputError(f"--device {device}: use {' or '.join(DEVICES)}")
    with Progress(quiet) as progress:
        return measure(cast("Device", device), progress)


def _show(found: "Calibration", files: tuple[str, ...], output: OutputOptions) -> None:
    dumped: dict[str, Any] = found.model_dump(mode="json")
    answer = {"schema": "meshwright/calibration/1", **dumped, "files": list(files)}
    if output.json:
        print_json(answer)
    else:
        from planner.report.calibration import calibration_report
        from planner.report.console import show

        show(calibration_report(found, files))
    check_thresholds(answer, output.fail_if or ())
