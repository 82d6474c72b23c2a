"""Lets the tests of this folder import the tiny model of the exporters' tests."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "exporters"))
