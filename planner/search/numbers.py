"""Whole numbers that divide others."""

import math


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def rounder(number: int) -> list[int]:
    """Smaller numbers that divide better: the largest ones with ever smaller odd factors."""
    found, least = list[int](), _odd(number)
    for smaller in range(number - 1, 0, -1):
        if _odd(smaller) < least:
            found.append(smaller)
            least = _odd(smaller)
    return found


def _odd(number: int) -> int:
    return number // (number & -number)


def powers_of_two(limit: int) -> list[int]:
    """1, 2, 4, ... up to ``limit``."""
    return [1 << k for k in range(max(1, limit).bit_length()) if 1 << k <= max(1, limit)]
