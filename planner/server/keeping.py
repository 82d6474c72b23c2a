"""Plans on disk, so that what was searched once is there after a restart: one plan file for each question."""

import os
from pathlib import Path

from pydantic import ValidationError

from planner.analysis.questions import Question
from planner.plans import Plan

MOST_PLANS = 2000
"""Files in a folder, a few hundred kilobytes each at most; the ones written longest ago go first."""


def usual_folder() -> Path:
    """Where plans are kept between runs: ``meshwright/plans`` in the user's folder for caches."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "meshwright" / "plans"


class Shelf:
    """A folder of plan files, named by the digest of what was asked (`planner.sweep.answers.key_of`)."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder; raises ``OSError`` where that cannot be done."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def get(self, key: str, question: Question) -> Plan | None:
        """The plan that was kept, under the names of ``question``; None where there is none that can be read."""
        try:
            plan = Plan.model_validate_json(self._path(key).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        return plan.model_copy(update={"model": question.model, "cluster": question.cluster})

    def put(self, key: str, plan: Plan) -> None:
        """Keep a plan; whoever reads meanwhile sees the whole of it or nothing."""
        written = self._folder / f".{key}.{os.getpid()}.tmp"
        written.write_text(plan.to_json(), encoding="utf-8")
        written.replace(self._path(key))
        self._make_room()

    def _make_room(self) -> None:
        kept = list(self._folder.glob("*.json"))
        for path in sorted(kept, key=_written)[: max(0, len(kept) - MOST_PLANS)]:
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"


def _written(path: Path) -> float:
    """When; long ago where another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
