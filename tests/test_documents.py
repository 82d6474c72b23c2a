"""Documents that show code tell the truth: their blocks run, and examples print what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from cluster_specs.catalog import load_cluster
from cluster_specs.shipped import fabrics
from planner.cli.app import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^    (?:.*&& )?(meshwright .+)$", re.MULTILINE)
SAID = re.compile(r"`(meshwright [^`]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def blocks(path: Path, language: str) -> str:
    """All blocks of a language, in order: later ones may use what earlier ones define."""
    return "\n".join(code for name, code in BLOCK.findall(path.read_text()) if name == language)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def need_frameworks(code: str) -> None:
    """Skip the test where a framework that the code imports is not installed."""
    for framework in ("torch", "transformers", "jax"):
        if re.search(rf"^(?:import|from) {framework}\b", code, re.MULTILINE):
            pytest.importorskip(framework)


def run(*command: str, cwd: Path = ROOT) -> str:
    result = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if blocks(p, "python")], ids=relative)
def test_python_blocks_run(path: Path, tmp_path: Path) -> None:
    need_frameworks(blocks(path, "python"))
    run(sys.executable, "-W", "error", "-c", blocks(path, "python"), cwd=tmp_path)


def test_readme_shows_the_api() -> None:
    assert "from planner import" in blocks(ROOT / "README.md", "python")


def test_readme_first_command_recommends_a_plan() -> None:
    command = next(iter(COMMAND.findall((ROOT / "README.md").read_text())))
    printed = iter(run(sys.executable, "-m", "planner.cli", *command.split()[1:]).splitlines())
    shown = [line for line in blocks(ROOT / "README.md", "text").splitlines() if line not in ("", "...")]
    assert any("step time" in line for line in shown)
    for line in shown:
        assert line in printed, f"not printed, or not in this order: {line}"


def test_the_page_on_programs_shows_what_is_printed(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    page = ROOT / "docs" / "tracing.md"
    (tmp_path / "train.py").write_text(
        next(code for name, code in BLOCK.findall(page.read_text()) if name == "python")
    )
    command = next(iter(COMMAND.findall(page.read_text())))
    assert run(sys.executable, "-m", "planner.cli", *command.split()[1:], cwd=tmp_path) == blocks(
        page, "text"
    )


def test_readme_run_file_evaluates(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(blocks(ROOT / "README.md", "toml"))
    assert "step time" in run(sys.executable, "-m", "planner.cli", "evaluate", str(file))


def test_cluster_files_load_and_fabrics_are_named(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    files = [code for language, code in BLOCK.findall(text) if language == "toml"]
    assert len(files) == 2
    for code in files:
        (tmp_path / "ours.toml").write_text(code)
        assert load_cluster(tmp_path / "ours.toml").num_devices > 1
    assert all(f"`{name}`" in text for name in fabrics())


def commands(path: Path) -> list[str]:
    """All that a document has a reader type, lines joined that go on."""
    text = path.read_text().replace("\\\n", " ")
    return [*COMMAND.findall(text), *(" ".join(said.split()) for said in SAID.findall(text))]


@pytest.mark.parametrize("path", [p for p in DOCUMENTS if commands(p)], ids=relative)
def test_commands_and_their_options_exist(path: Path) -> None:
    known = get_command(app)
    assert isinstance(known, TyperGroup)
    for line in commands(path):
        first, _, options = line.removeprefix("meshwright ").partition(" ")
        if first.startswith("-"):
            continue  # of meshwright itself
        for name in first.rstrip(",").split("|"):
            assert name in known.commands, line
            parameters = known.commands[name].params
            offered = {option for given in parameters for option in (*given.opts, *given.secondary_opts)}
            assert set(OPTION.findall(options)) <= offered | {"--help"}, line


def sections(path: Path) -> list[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    return [
        re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in HEADING.findall(path.read_text())
    ]


@pytest.mark.parametrize("path", DOCUMENTS, ids=relative)
def test_links_lead_somewhere(path: Path) -> None:
    for file, section in LINK.findall(path.read_text()):
        target = path.parent / file if file else path
        assert target.exists(), file
        assert not section or section in sections(target), f"{file}#{section}"


@pytest.mark.parametrize("path", EXAMPLES, ids=relative)
def test_examples_print_what_they_say(path: Path) -> None:
    need_frameworks(path.read_text())
    printed = run(sys.executable, str(path))
    expected = path.with_suffix(".out")
    if expected.exists():
        assert printed == expected.read_text()
    else:
        assert printed
