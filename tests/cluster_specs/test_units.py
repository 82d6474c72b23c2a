"""Quantities against worked numbers, and round trips for any number."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from cluster_specs.errors import InputError
from cluster_specs.units import (
    BINARY,
    DECIMAL,
    SUBMULTIPLES,
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Seconds,
    Unit,
    Watts,
    format_bandwidth,
    format_bytes,
    format_change,
    format_count,
    format_quantity,
    format_rate,
    format_seconds,
    parse_duration,
    parse_quantity,
)


class Sample(BaseModel):
    size: Bytes = 0.0
    width: BytesPerSecond = 0.0
    rate: FlopsPerSecond = 0.0
    time: Seconds = 0.0
    power: Watts = 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.35 TB/s", 3.35e12),
        ("400 Gbit/s", 50e9),
        ("80 GiB", 80 * 2**30),
        ("80GB", 80e9),
        ("81559 MiB", 81559 * 1024 * 1024),
        ("2.5 us", 2.5e-6),
        ("2.5 µs", 2.5e-6),
        ("3 min", 180.0),
        ("2 h", 7200.0),
        ("989 TFLOP/s", 989e12),
        ("989 TFLOPS", 989e12),
        ("1 PFLOP", 1e15),
        ("1e3 B", 1000.0),
        (".5 kB", 500.0),
        ("700 W", 700.0),
        ("  8  bits ", 1.0),
    ],
)
def test_worked_numbers(text: str, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    ("text", "unit", "words"),
    [
        ("400 Gb/s", "B/s", ["Gbit/s or GB/s"]),
        ("400 Gbps", "B/s", ["Gbit/s or GB/s"]),
        ("80 Gb", "B", ["Gbit or GB"]),
        ("80 Gib", "B", ["Gibit or GiB"]),
        ("80", "B", ["no unit", "80 GiB"]),
        ("fast", "B/s", ["not a quantity"]),
        ("", "s", ["not a quantity"]),
        ("80 GiB", "B/s", ["expected B/s"]),
        ("3 parsec", "s", ["unknown unit 'parsec'"]),
        ("3 Gis", "s", ["unknown unit"]),
        ("3 GiFLOP/s", "FLOP/s", ["unknown unit"]),
        ("nan GB", "B", ["not a quantity"]),
    ],
)
def test_bad_quantities_say_what_would_be_right(text: str, unit: Unit, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        parse_quantity(text, unit)
    assert repr(text) in str(caught.value)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90d", 90 * 86400),
        ("6w", 6 * 7 * 86400),
        ("1.5 h", 5400),
        ("15min", 900),
        ("30s", 30),
        ("20 us", 2e-5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["15m", "soon", "", "d", "5 parsec"])
def test_what_is_no_duration_is_told_how_to_be_one(text: str) -> None:
    with pytest.raises(
        InputError, match="is not a quantity of time: write it as in 90d, 6w, 36h, 15min or 30s"
    ):
        parse_duration(text)


@given(st.floats(min_value=1e-3, max_value=1e20), st.integers(min_value=2, max_value=9))
def test_formatting_is_read_back_to_the_digits_asked_for(value: float, digits: int) -> None:
    for unit in ("B", "B/s", "FLOP", "FLOP/s"):
        again = parse_quantity(format_quantity(value, unit, digits), unit)
        assert again == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))
    assert parse_quantity(format_bytes(value, digits), "B") == pytest.approx(
        value, rel=0.51 * 10 ** (1 - digits)
    )


@given(st.floats(min_value=1e-9, max_value=1e6), st.integers(min_value=2, max_value=9))
def test_seconds_are_read_back(value: float, digits: int) -> None:
    again = parse_quantity(format_seconds(value, digits), "s")
    assert again == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


@given(st.floats(min_value=0, max_value=1e15, allow_subnormal=False))
def test_prefixes_multiply(value: float) -> None:
    for prefix, factor in (DECIMAL | BINARY).items():
        assert parse_quantity(f"{value!r} {prefix}B", "B") == pytest.approx(value * factor)
        assert parse_quantity(f"{value!r} {prefix}bit/s", "B/s") == pytest.approx(value * factor / 8)
    for prefix, factor in SUBMULTIPLES.items():
        assert parse_quantity(f"{value!r} {prefix}s", "s") == pytest.approx(value * factor)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bandwidth(3.35e12), "3.35 TB/s"),
        (format_bytes(81559 * 2**20), "79.6 GiB"),
        (format_seconds(2.5e-6), "2.5 us"),
        (format_seconds(0.0), "0 s"),
        (format_rate(989e12), "989 TFLOP/s"),
        (format_count(1, "device"), "1 device"),
        (format_count(16, "device"), "16 devices"),
        (format_change(-0.015), "-1.5%"),
        (format_change(0.0004), "<0.1%"),
        (format_bandwidth(999.96e9), "1 TB/s"),
        (format_quantity(1234.0, "s", 3), "1230 s"),
        (format_seconds(10476.0), "10500 s"),
        (format_bandwidth(-2e9), "-2 GB/s"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


def test_fields_take_numbers_as_si_and_text_with_units() -> None:
    read = Sample.model_validate(
        {"size": "80 GiB", "width": "400 Gbit/s", "rate": "1 PFLOP/s", "time": "2 us", "power": "1 kW"}
    )
    assert read == Sample(size=80 * 2**30, width=5e10, rate=1e15, time=2e-6, power=1000.0)


@pytest.mark.parametrize("value", ["80 Gb", True, math.inf, math.nan, None, [1]])
def test_fields_refuse_what_is_no_quantity(value: object) -> None:
    with pytest.raises(ValidationError):
        Sample.model_validate({"size": value})
