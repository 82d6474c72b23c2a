"""Names of operators in a compiled program, so that its collectives can be told apart."""

SCOPE = "mw["
"""Begins the name scope of every operator in the compiled program; the name follows, then ``]``."""


def scope_of(operator: str) -> str:
    """Name scope of an operator; slashes would make levels of it."""
    return f"{SCOPE}{operator.replace('/', '>')}]"


def operator_of(scope: str) -> str:
    """The operator whose scope has this between its brackets."""
    return scope.replace(">", "/")
