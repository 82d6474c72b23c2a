"""``python -m planner.cli`` is ``meshwright``."""

from planner.cli import main

main()
