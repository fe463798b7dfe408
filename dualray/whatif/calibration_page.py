"""The results of a calibration: table cells for terminals, and a page with parameters, fit and residuals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from dualray.sim.cost.cost_model import CostModel
from dualray.whatif.answers import noise_words
from dualray.whatif.calibrate import Fit, Phase
from dualray.whatif.intervals import NOISE_WORTH_A_WORD
from dualray.whatif.page import html_page, html_table

PARAMETERS = ("parameter", "fitted", "95 % interval", "default")
PHASES = ("phase", "measured", "most", "replayed", "error", "")


def parameter_cells(fit: Fit) -> list[list[str]]:
    """The fitted parameters, under PARAMETERS."""
    calibration = fit.calibration
    units = {it.name: it.unit for it in CostModel.params()}
    defaults = {it.name: it.default for it in CostModel.params()}
    rows = []
    for name, value in calibration.costs.items():
        interval = calibration.intervals.get(name)
        words = f"{_amount(interval[0], units[name])} to {_amount(interval[1], units[name])}" if interval else ""
        rows.append([name, _amount(value, units[name]), words, _amount(defaults[name], units[name])])
    low, high = calibration.intervals["slowdown"]
    rows.append(["slowdown", f"{calibration.slowdown:.3f}", f"{low:.3f} to {high:.3f}", "0"])
    return rows


def phase_cells(phases: Sequence[Phase]) -> list[list[str]]:
    """Return the measured and the replayed times, under PHASES."""
    return [
        [
            f"{phase.program}: {phase.name}",
            _time(phase.least_s),
            _time(max(phase.measured_s)),
            _time(phase.replayed_s),
            f"{phase.error:+.0%}",
            "held out" if phase.is_held_out else "",
        ]
        for phase in phases
    ]


def summary(fit: Fit) -> str:
    """In a sentence."""
    calibration = fit.calibration
    assert calibration.error is not None
    return (
        f"{fit.rounds} round{'s' if fit.rounds != 1 else ''} in {fit.measured_for_s:.0f} s on {calibration.machine}; "
        f"held-out error {calibration.error:.0%} (median of {len(calibration.checks)} phases that the fit did not see)"
        f"{_beside(calibration.noise)}"
    )


def _beside(noise: float) -> str:
    """What is to be said of a machine that others used meanwhile."""
    if noise <= NOISE_WORTH_A_WORD:
        return ""
    return f"; other programs used the machine (noise: {noise_words(noise)}), so predictions have wider intervals"


def page(fit: Fit) -> str:
    """The page."""
    calibration = fit.calibration
    return html_page(
        f"Calibration of {calibration.machine}",
        f"{calibration.date}: {summary(fit)}",
        [
            html_table(PARAMETERS, parameter_cells(fit)),
            _against(fit.phases),
            _left_over(fit.phases),
            html_table(PHASES, phase_cells(fit.phases)),
        ],
    )


def write_page(fit: Fit, path: Path) -> None:
    """Write the page.

    Raises:
        OSError: the file cannot be written.
    """
    path.write_text(page(fit), encoding="utf-8")


def _against(phases: Sequence[Phase]) -> go.Figure:
    figure = go.Figure(
        layout={"title": "Replayed and measured time (the fastest round; the bar ends at the slowest round)"}
    )
    for is_held_out, name in ((False, "fitted"), (True, "held out")):
        shown = [phase for phase in phases if phase.is_held_out == is_held_out]
        figure.add_scatter(
            x=[phase.least_s for phase in shown],
            y=[phase.replayed_s for phase in shown],
            text=[phase.name for phase in shown],
            name=name,
            mode="markers",
            error_x={
                "symmetric": False,
                "array": [max(phase.measured_s) - phase.least_s for phase in shown],
                "arrayminus": [0.0 for _ in shown],
            },
        )
    ends = [min(phase.least_s for phase in phases), max(phase.least_s for phase in phases)]
    figure.add_scatter(x=ends, y=ends, name="equal", mode="lines", line={"dash": "dot", "color": "gray"})
    figure.update_xaxes(title="measured, seconds", type="log")
    figure.update_yaxes(title="replayed, seconds", type="log")
    return figure


def _left_over(phases: Sequence[Phase]) -> go.Figure:
    figure = go.Figure(layout={"title": "Residuals of the fit: (replayed - measured) / measured"})
    colors = ["#bf8700" if phase.is_held_out else "#0969da" for phase in phases]
    figure.add_bar(
        x=[phase.error for phase in phases],
        y=[phase.name for phase in phases],
        orientation="h",
        marker={"color": colors},
    )
    figure.update_xaxes(tickformat="+.0%")
    figure.update_layout(height=160 + 24 * len(phases), margin={"l": 260})
    return figure


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def _amount(value: float, unit: str) -> str:
    if unit != "ns":
        return f"{value / 1e6:,.0f} MB/s" if value >= 1e9 else f"{value / 1e6:.4g} MB/s"
    return f"{value / 1e6:.4g} ms" if value >= 1e6 else f"{value / 1e3:.4g} us"
