"""Distributions of times, as data: `lognormal(2s, 0.5)`. A draw is an argument (uniform numbers), never taken here."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

from dualray.shared.units import parse_time_ns, time_words

_FORM = re.compile(r"\s*(?P<name>[a-z]+)\s*\(\s*(?P<first>[^,()]+?)\s*(?:,\s*(?P<second>[^,()]+?)\s*)?\)\s*")
_EXAMPLES = (
    "2.5s, uniform(1s, 3s), exponential(2s), exponential(2s, 9s), normal(2s, 0.3s), "
    "lognormal(2s, 0.5) or pareto(1s, 1.5)"
)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of times >= 0.

    Attributes:
        name: constant, uniform, exponential, normal, lognormal or pareto.
        first_ns: the constant; uniform: the least; exponential, normal: the mean; lognormal: the median; pareto: the
            least.
        second: uniform: the most, in ns; exponential: the most, in ns, at which it is cut off (its mean is that before
            the cut), 0 for none; normal: the standard deviation, in ns; lognormal: that of the logarithm;
            pareto: the exponent.
    """

    name: str
    first_ns: int
    second: float = 0.0

    def __str__(self) -> str:
        match self.name:
            case "constant":
                return time_words(self.first_ns)
            case "exponential":
                most = f", {time_words(int(self.second))}" if self.second else ""
                return f"exponential({time_words(self.first_ns)}{most})"
            case "uniform" | "normal":
                return f"{self.name}({time_words(self.first_ns)}, {time_words(int(self.second))})"
            case _:
                return f"{self.name}({time_words(self.first_ns)}, {self.second!r})"

    def quantile_ns(self, share: float) -> int:
        """The time that this share of all draws, 0 to 1, does not exceed."""
        return self.sample_ns(lambda: share)

    def sample_ns(self, uniform: Callable[[], float]) -> int:
        """One draw in nanoseconds; `uniform` gives numbers from 0 to below 1 (`random.Random.random`)."""
        draw = min(max(uniform(), 1e-12), 1 - 1e-12)
        match self.name:
            case "uniform":
                value = self.first_ns + draw * (self.second - self.first_ns)
            case "exponential":
                below = 1 - math.exp(-self.second / self.first_ns) if self.second and self.first_ns else 1.0
                value = -self.first_ns * math.log(1 - draw * below)
            case "normal":
                value = NormalDist(self.first_ns, self.second).inv_cdf(draw) if self.second else self.first_ns
            case "lognormal":
                value = self.first_ns * math.exp(self.second * NormalDist().inv_cdf(draw))
            case "pareto":
                value = self.first_ns * (1 - draw) ** (-1 / self.second)
            case _:
                value = self.first_ns
        return max(0, round(value))


def parse_distribution(text: str, what: str = "a duration") -> Distribution:
    """A time, or a distribution of times, from text.

    Raises:
        ValueError: it is neither, or a parameter is out of range; the message names `what`.
    """
    match = _FORM.fullmatch(text)
    if match is None:
        if "(" in text:
            raise ValueError(f"{what}: {text!r} is not understood; write {_EXAMPLES}")
        return Distribution("constant", parse_time_ns(text, what))
    name, first, second = match["name"], match["first"], match["second"]
    if name not in ("uniform", "exponential", "normal", "lognormal", "pareto"):
        raise ValueError(f"{what}: there is no distribution {name!r}; write {_EXAMPLES}")
    first_ns = parse_time_ns(first, what)
    if second is None:
        if name != "exponential":
            raise ValueError(f"{what}: {name} takes two parameters; write {_EXAMPLES}")
        return Distribution(name, first_ns)
    if name in ("uniform", "normal", "exponential"):
        parameter: float = parse_time_ns(second, what)
    else:
        try:
            parameter = float(second)
        except ValueError:
            raise ValueError(f"{what}: the second parameter of {name} must be a plain number, not {second!r}") from None
    if name == "uniform" and parameter < first_ns:
        raise ValueError(f"{what}: the second parameter, {second}, must not be less than the first, {first}")
    if parameter < 0 or (name in ("pareto", "exponential") and parameter == 0):
        raise ValueError(f"{what}: the second parameter of {name} must be above 0")
    return Distribution(name, first_ns, parameter)
