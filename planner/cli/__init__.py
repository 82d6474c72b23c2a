"""The command line: one API call and one report per command.

Nothing here decides anything, and nothing heavy is imported before a command runs: ``meshwright --help``
has to answer at once.
"""

from planner.cli.app import main

__all__ = ["main"]
