"""Plans on disk, so that what was searched once is there after a restart: one plan file for each question."""

import os
from pathlib import Path

from pydantic import ValidationError

from planner.analysis.questions import Question
from planner.plans import Plan


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

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}.json"
