"""A calibration as a file: the cost model's parameters as measured on one machine, with their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from dualray.input_files import read_text

FORMAT = "dualray-calibration/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Measured parameters.

    Attributes:
        machine, date: where and when it was measured.
        engine: of what: "dualray", which is real mode, or "ray".
        costs: parameters of the cost model, in their units (ns, bytes/s).
        intervals: of each of them, the 95 % confidence interval.
        slowdown: by how much (0.05: 5 %) each further busy core slows the others down; see dualray/sim/kernel/cores.py.
        error: the held-out error: the median of |predicted - measured| / measured over programs that were not used
            for the fit.
        noise: by how much others slowed a fixed piece of computing meanwhile: its mean above its least, 1 at most.
        checks: these programs, each with what was measured and predicted, in seconds.
    """

    machine: str = ""
    engine: str = "dualray"
    date: str = ""
    costs: Mapping[str, int] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    slowdown: float = 0.0
    error: float | None = None
    checks: tuple[Mapping[str, Any], ...] = ()
    noise: float = 0.0

    def dump(self) -> str:
        """The file's text."""
        content = {
            "format": FORMAT,
            **({"engine": self.engine} if self.engine != "dualray" else {}),
            "machine": self.machine,
            "date": self.date,
            "held_out_error": self.error,
            "costs": dict(self.costs),
            "intervals": {name: list(pair) for name, pair in self.intervals.items()},
            "slowdown": self.slowdown,
            "noise": self.noise,
            "held_out": [dict(check) for check in self.checks],
        }
        return yaml.safe_dump(content, sort_keys=False, width=120)


def load_calibration(path: Path) -> Calibration:
    """Read a calibration file.

    Raises:
        ValueError: it cannot be read, or is none; one line says what is wrong.
    """
    try:
        content = yaml.safe_load(read_text(path))
    except OSError as error:
        raise ValueError(f"calibration {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a calibration: the file is not text") from None
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path} is not a calibration of format {FORMAT!r}; `dualray calibrate` writes one")
    costs = content.get("costs")
    slowdown = content.get("slowdown", 0.0)
    if not isinstance(costs, dict) or not all(type(value) is int and value >= 0 for value in costs.values()):
        raise ValueError(f"{path}: costs must map each name of a cost to a whole number of at least 0")
    if not isinstance(slowdown, int | float) or not 0 <= slowdown <= 10:
        raise ValueError(f"{path}: slowdown={slowdown!r} must be a number from 0 to 10")
    noise = content.get("noise", 0.0)
    if not isinstance(noise, int | float) or not 0 <= noise <= 100:
        raise ValueError(f"{path}: noise={noise!r} must be a number from 0 to 100")
    return Calibration(
        machine=str(content.get("machine", "")),
        engine=str(content.get("engine", "dualray")),
        date=str(content.get("date", "")),
        costs=costs,
        intervals={name: (pair[0], pair[1]) for name, pair in (content.get("intervals") or {}).items()},
        slowdown=float(slowdown),
        error=content.get("held_out_error"),
        noise=float(noise),
        checks=tuple(content.get("held_out") or ()),
    )
