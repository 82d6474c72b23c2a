"""Golden files (text that we ship, compared with what the code writes now), and how all tests run."""

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine is no failure, and the same commit passes or fails everywhere; look for new counterexamples with
# ``pytest --hypothesis-profile=explore``.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("repository")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from the code")


def pytest_collection_finish() -> None:
    """Frameworks and tests are there to the end, as are most records: look for garbage among others, and less."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """``golden(name, text)`` holds when ``tests/golden/<name>`` has exactly this text."""

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"{path} is missing; write it with --update-golden"
        assert text == path.read_text()

    return check
