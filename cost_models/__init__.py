"""How long and how big: pure functions from numbers and specs to seconds and bytes."""
