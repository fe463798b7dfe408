from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.units import parse_rate_bytes_per_s, parse_share, parse_size_bytes, parse_time_ns, size_words


@pytest.mark.parametrize(
    ("text", "expected_ns"),
    [
        ("0s", 0),
        ("1ns", 1),
        ("2us", 2_000),
        ("300ms", 300_000_000),
        ("2.5s", 2_500_000_000),
        (".5s", 500_000_000),
        ("2min", 120 * 10**9),
        ("1h", 3600 * 10**9),
        (" 1 s ", 10**9),
        ("1e3ms", 10**9),
        ("1.5E-3s", 1_500_000),
    ],
)
def test_times(text, expected_ns):
    assert parse_time_ns(text) == expected_ns


@pytest.mark.parametrize(
    ("text", "expected_bytes"),
    [
        ("1B", 1),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("512MiB", 512 * 2**20),
        ("2GB", 2 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1TB", 10**12),
        ("1TiB", 2**40),
    ],
)
def test_sizes(text, expected_bytes):
    assert parse_size_bytes(text) == expected_bytes


@pytest.mark.parametrize(
    "text", ["", "s", "5", "-1s", "1 s s", "1,5s", "1 d", "1S", "0x1s", "1.s", "nans", "infs", "1e400s", "٣s"]
)
def test_what_is_no_time_is_refused_with_the_text_and_the_way_to_write_it(text):
    with pytest.raises(ValueError) as refused:
        parse_time_ns(text, "lease_idle")
    assert str(refused.value) == (
        f"lease_idle: {text!r} is not understood; write a number with one of ns, us, ms, s, m, min, h: 2.5s or 300ms"
    )


@pytest.mark.parametrize("text", ["1", "1kb", "1 G", "-1B"])
def test_what_is_no_size_is_refused_with_the_text_and_the_way_to_write_it(text):
    with pytest.raises(ValueError, match=r"a size: .* is not understood; .* KiB, MiB, GiB, TiB: 512MiB or 2GB"):
        parse_size_bytes(text)


@given(st.integers(0, 2**70), st.sampled_from([("ns", 1), ("ms", 10**6), ("h", 3600 * 10**9)]))
def test_whole_numbers_are_exact(count, unit):
    name, ns = unit
    assert parse_time_ns(f"{count}{name}") == count * ns


@given(st.integers(0, 10**18))
def test_a_time_in_seconds_with_nine_places_is_exact(time_ns):
    assert parse_time_ns(f"{time_ns // 10**9}.{time_ns % 10**9:09d}s") == time_ns


@given(st.text(max_size=10))
def test_any_text_is_a_time_or_a_value_error(text):
    try:
        assert parse_time_ns(text) >= 0
    except ValueError as refused:
        assert repr(text) in str(refused)  # noqa: PT017 - most texts are refused, and a few are times


@pytest.mark.parametrize(
    ("parse", "text", "words"),
    [
        (parse_time_ns, "2GB", "a time: '2GB' is a size; write for example 2.5s or 300ms"),
        (parse_size_bytes, "1 MiB/s", "a size: '1 MiB/s' is a rate; write for example 512MiB or 2GB"),
        (parse_rate_bytes_per_s, "5ms", "a rate: '5ms' is a time; write for example 10Gbps or 1.25GB/s"),
    ],
)
def test_a_unit_of_something_else_is_told_as_what_it_is(parse, text, words):
    with pytest.raises(ValueError) as refused:
        parse(text)
    assert str(refused.value) == words


def test_sizes_for_people():
    assert [size_words(size) for size in (5, 2048, 3 << 19, 5 << 30)] == ["5 bytes", "2.0 KiB", "1.5 MiB", "5.0 GiB"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5%", Fraction(1, 20)),
        (" 5 % ", Fraction(1, 20)),
        ("0.05", Fraction(1, 20)),
        ("1/20", Fraction(1, 20)),
        ("0", 0),
    ]
    + [("0%", 0), ("1", 1), ("100%", 1), ("2.5%", Fraction(1, 40)), ("1e-3", Fraction(1, 1000))],
)
def test_shares(text, expected):
    assert parse_share(text) == expected


@pytest.mark.parametrize("text", ["5", "101%", "-1%", "-0.1", "", "%", "5%%", "5% of all", "half", "nan", "inf", "1/0"])
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match=r"--repeat: .* (is not understood|must be between).*5% or 0\.05"):
        parse_share(text, "--repeat")
