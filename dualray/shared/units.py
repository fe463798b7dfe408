"""Times, sizes and rates with their units, as people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

_NUMBER = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,2})?)\s*([A-Za-z/]*)\s*")
_TIMES = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 10**9, "m": 60 * 10**9, "min": 60 * 10**9, "h": 3600 * 10**9}
_SIZES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_RATES = {
    **{f"{prefix}bps": Fraction(factor, 8) for prefix, factor in (("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9))},
    **{f"{unit}/s": Fraction(factor) for unit, factor in _SIZES.items()},
}


def parse_time_ns(text: str, what: str = "a time") -> int:
    """`"2.5s"` as nanoseconds. Units: ns, us, ms, s, m or min, h.

    Raises:
        ValueError: no number, or no unit that is known; the message names `what`.
    """
    return _parse(text, _TIMES, what, "2.5s or 300ms")


def parse_size_bytes(text: str, what: str = "a size") -> int:
    """`"1.5GiB"` as bytes. Units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB.

    Raises:
        ValueError: no number, or no unit that is known; the message names `what`.
    """
    return _parse(text, _SIZES, what, "512MiB or 2GB")


def parse_rate_bytes_per_s(text: str, what: str = "a rate") -> int:
    """`"10Gbps"` as bytes a second. Units: bps, kbps, Mbps, Gbps count bits; B/s, kB/s, MiB/s and so on bytes.

    Raises:
        ValueError: no number, or no unit that is known; the message names `what`.
    """
    return _parse(text, _RATES, what, "10Gbps or 1.25GB/s")


def parse_share(text: str, what: str = "a share") -> Fraction:
    """`"5%"`, `"0.05"` and `"1/20"` as the same exact number, from 0 to 1.

    Raises:
        ValueError: no number, or none that is a share; the message names `what`.
    """
    number, percent, rest = text.strip().partition("%")
    try:
        share = Fraction(number.strip()) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):
        share = None
    if share is None or rest:
        raise ValueError(f"{what}: {text!r} is not understood; write a percentage or a fraction: 5% or 0.05")
    if not 0 <= share <= 1:
        raise ValueError(
            f"{what}: {text!r} must be between 0% and 100%, or between 0 and 1; write for example 5% or 0.05"
        )
    return share


def time_words(time_ns: int) -> str:
    """A time as `parse_time_ns` reads it, exact: `2.5s`."""
    seconds, rest_ns = divmod(time_ns, 10**9)
    places = f".{rest_ns:09d}".rstrip("0") if rest_ns else ""
    return f"{seconds}{places}s"


def size_words(size_bytes: int) -> str:
    """A size for people, rounded: `1.5 GiB`."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes >= _SIZES[unit]:
            return f"{size_bytes / _SIZES[unit]:.1f} {unit}"
    return f"{size_bytes} bytes"


_KINDS: Mapping[str, Mapping[str, object]] = {"a time": _TIMES, "a size": _SIZES, "a rate": _RATES}


def _parse(text: str, units: Mapping[str, int | Fraction], what: str, example: str) -> int:
    match = _NUMBER.fullmatch(text)
    unit = units.get(match.group(2)) if match else None
    other = next((kind for kind, known in _KINDS.items() if match and match.group(2) in known), None)
    if unit is None and other is not None:
        raise ValueError(f"{what}: {text!r} is {other}; write for example {example}")
    if match is None or unit is None:
        raise ValueError(
            f"{what}: {text!r} is not understood; write a number with one of {', '.join(units)}: {example}"
        )
    return round(Fraction(match.group(1)) * unit)
