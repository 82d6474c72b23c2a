"""What keeps the house in order: sizes, cycles, documentation, start-up."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("cluster_specs", "cost_models", "planner")
MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PYTHON_FILES = [*MODULES, *sorted((ROOT / "tests").rglob("*.py"))]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

HEAVY = (
    "numpy",
    "pulp",
    "highspy",
    "networkx",
    "rich",
    "torch",
    "jax",
    "planner.search",
    "planner.evaluation",
)
"""Not needed to print a help text."""

STARTUPS = 15
"""What Python alone takes to start, that often, is the most that a help text may take."""


def module_name(path: Path) -> str:
    """Dotted name of a module's file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(path): path for path in MODULES}


def test_every_package_has_modules() -> None:
    assert {name.split(".")[0] for name in NAMES} == set(PACKAGES)


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_have_one_purpose(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    """All functions and methods of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_functions_fit_on_a_screen(path: Path) -> None:
    long = [
        f"{function.name}: {lines} lines"
        for function in functions(ast.parse(path.read_text()))
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_FUNCTION_LINES
    ]
    assert long == []


def public_definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    """Public functions and classes, and the public methods of the classes."""
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        yield node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body)


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_whatever_is_public_is_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    bare = [node.name for node in public_definitions(tree.body) if not ast.get_docstring(node)]
    assert (ast.get_docstring(tree) is not None, bare) == (True, [])


def imports(path: Path) -> Iterator[str]:
    """Our modules that a module imports when it is loaded (those in functions and for types are later)."""
    for node in loaded_statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in NAMES)
        elif isinstance(node, ast.ImportFrom) and node.module in NAMES:
            inner = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in NAMES else node.module for name in inner)


def loaded_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run on import: not those of functions, nor of ``if TYPE_CHECKING``."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and not (
            isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        ):
            yield from loaded_statements(node.body + node.orelse)
        elif isinstance(node, ast.Try):
            yield from loaded_statements(node.body)


def test_imports_have_no_cycles() -> None:
    graph = networkx.DiGraph((name, used) for name, path in NAMES.items() for used in imports(path))
    assert graph.number_of_edges() > len(NAMES) / 2
    assert [sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1] == []


def test_the_command_line_starts_light() -> None:
    """Help needs no solver, no arrays, no framework, and none of our own algorithms."""
    code = f"import sys, planner.cli.app; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def cpu_seconds(*arguments: str) -> float:
    """Of a whole process of Python."""
    code = (
        f"import resource, subprocess, sys; subprocess.run([sys.executable, *{arguments!r}], "
        "stdout=subprocess.DEVNULL, check=True); used = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(used.ru_utime + used.ru_stime)"
    )
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def test_help_is_fast() -> None:
    """On any machine: it is held to what the interpreter itself takes there.

    Other processes only add to what is measured, so the least of each counts, taken in turn so
    that both see the same machine.
    """
    pairs = [(cpu_seconds("-m", "planner.cli", "--help"), cpu_seconds("-c", "pass")) for _ in range(10)]
    helped, started = map(min, zip(*pairs, strict=True))
    assert helped < STARTUPS * started


ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def test_cited_papers_are_listed() -> None:
    """A paper that code, data or formulas cite has its title in docs/sources.md."""
    listed = set(ARXIV.findall((ROOT / "docs" / "sources.md").read_text()))
    files = [
        *MODULES,
        ROOT / "docs" / "formulas.md",
        *(p for q in PACKAGES for p in (ROOT / q).rglob("*.toml")),
    ]
    cited = {paper for path in files for paper in ARXIV.findall(path.read_text())}
    assert cited
    assert cited - listed == set()


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert re.findall(r"\b(TODO|FIXME|XXX|HACK)\b", path.read_text()) == []
