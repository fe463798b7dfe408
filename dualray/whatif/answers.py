"""A prediction in sentences and table cells, for terminals and pages alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from decimal import Decimal

from dualray.shared.units import size_words
from dualray.whatif.causes import Cause
from dualray.whatif.compare import Help
from dualray.whatif.configurations import Configuration
from dualray.whatif.critical_path import Stretch, by_function
from dualray.whatif.intervals import NOISE_WORTH_A_WORD
from dualray.whatif.predicted import Predicted, Row
from dualray.whatif.spot import is_spot

_KILLED_MAX = 5
_COMPARED_MAX = 6
"""Lines about pairs of policies."""
_DELAYED_MIN = 0.05
"""Of the makespan: less time without a core is not worth a word."""


LIKELY = 0.9
"""With which probability a run has to end within its deadline, unless something else is said."""


def answers_of(prediction: Predicted, deadline: str | None, probability: float = LIKELY) -> list[str]:
    """The knee, the cheapest that meets the deadline, and how far to trust it, in sentences."""
    return [*verdicts_of(prediction, deadline, probability), *grounds_of(prediction)]


def _beyond(prediction: Predicted, knee: Row) -> str:
    """What the most CPUs bring, in numbers."""
    most = max(prediction.possible, key=lambda row: (_cpus(row), -row.makespan_s))
    times = _cpus(most) / _cpus(knee)
    return f"; {times:.3g} times as many CPUs take {most.makespan_s:.4g} s" if times > 1 else ""


def _cpus(row: Row) -> float:
    return row.configuration.nodes * row.configuration.cpus


def verdicts_of(prediction: Predicted, deadline: str | None, probability: float = LIKELY) -> list[str]:
    """Which cluster to take: the knee or the fastest, the cheapest that meets the deadline, and, where there are spot
    machines, whether to take those."""
    lines = []
    varying = varying_of(prediction.rows)
    knee = prediction.knee()
    if knee is not None:
        lines.append(f"Knee: {knee.configuration.short(varying)}: {_span(knee)}{_beyond(prediction, knee)}.")
    elif prediction.is_scaling:
        first = min(prediction.possible, key=lambda row: row.makespan_s)
        lines.append(
            f"No knee: more CPUs still make the program faster. Fastest: {first.configuration.short(varying)}: "
            f"{_span(first)}."
        )
    elif len(prediction.possible) > 1:
        first = min(prediction.possible, key=lambda row: row.makespan_s)
        lines.append(f"Fastest: {first.configuration.short(varying)}: {_span(first)}.")
    if deadline is not None:
        found = prediction.cheapest(deadline)
        if found is not None:
            cost = f", {cost_words(found.cost)} a run" if found.cost is not None else ""
            lines.append(f"Cheapest within {deadline}: {found.configuration.short(varying)}: {_span(found)}{cost}.")
        else:
            fastest = min(prediction.possible, key=lambda row: row.high_s, default=None)
            nearest = f"; the fastest takes {_span(fastest)}" if fastest is not None else ""
            lines.append(f"None of the {len(prediction.rows)} configurations ends within {deadline}{nearest}.")
        lines += _chances(prediction, deadline)
        lines += _spot_or_not(prediction, deadline, probability)
    return lines + _policies(prediction)


def _chances(prediction: Predicted, deadline: str) -> list[str]:
    """How likely clusters of spot machines are to meet a deadline."""
    lines = []
    for row in prediction.possible:
        if not is_spot(row.configuration.faults):
            continue
        seeds = sum(config == row.configuration for config, _, _ in prediction.runs)
        chance = prediction.chance(row, deadline)
        cost = f", {cost_words(row.cost)} a run" if row.cost is not None else ""
        lines.append(
            f"{row.configuration.words}: {round(chance * seeds)} of {seeds} seeds end within {deadline} "
            f"({chance:.0%}){cost}."
        )
    return lines[:_COMPARED_MAX]


def _spot_or_not(prediction: Predicted, deadline: str, probability: float) -> list[str]:
    """The cheapest cluster of either kind that is likely enough to meet a deadline."""
    if not any(is_spot(row.configuration.faults) for row in prediction.rows):
        return []
    varying = varying_of(prediction.rows)
    parts = []
    for on_spot, kind in ((True, "on spot machines"), (False, "on demand")):
        row = prediction.likely(deadline, probability, on_spot=on_spot)
        if row is None:
            parts.append(f"{kind}, none")
            continue
        cost = f", {cost_words(row.cost)} a run" if row.cost is not None else ""
        parts.append(f"{kind}, {row.configuration.short(varying)} ({prediction.probability(row, deadline):.0%}{cost})")
    return [f"Cheapest within {deadline} with a probability of {probability:.0%}: {'; '.join(parts)}."]


def _policies(prediction: Predicted) -> list[str]:
    """Policies that were compared on the same cluster: how the best differs from each of the others."""
    by_cluster: dict[Configuration, list[Row]] = {}
    for row in prediction.possible:
        key = replace(row.configuration, policy="", eviction="")
        by_cluster.setdefault(key, []).append(row)
    lines = []
    for rows in by_cluster.values():
        if len(rows) < 2:
            continue
        best = min(rows, key=lambda row: row.makespan_s)
        for row in rows:
            if row is best:
                continue
            gain = prediction.compare(row, best)
            sure = "" if gain.is_sure else ": they may be equal"
            lines.append(
                f"{best.configuration.words} is {gain.gain:.1%} faster than with {row.configuration.policy}, "
                f"{row.configuration.eviction} ({gain.low:.0%} to {gain.high:.0%}){sure}."
            )
    return lines[:_COMPARED_MAX]


def grounds_of(prediction: Predicted) -> list[str]:
    """How far to trust a prediction, in sentences."""
    lines = []
    calibration = prediction.calibration
    if calibration is None:
        lines.append(
            "No calibration was given, so the costs are the cost model's defaults (`dualray sim params` shows them)."
        )
    elif calibration.error is not None:
        lines.append(
            f"The calibration measured {calibration.machine} on {calibration.date}. Its held-out error, for "
            f"measurements that the calibration did not use, is {calibration.error:.1%}."
        )
    if calibration is not None and calibration.noise > NOISE_WORTH_A_WORD:
        lines.append(
            f"During the calibration, other programs slowed the machine by {noise_words(calibration.noise)}, so the "
            f"intervals of the predictions are wider."
        )
    lines += _outside(prediction.rows)
    lines += _about_the_record(prediction)
    lines += prediction.trace.graph.remarks
    return lines


def noise_words(noise: float) -> str:
    """How noisy a machine was."""
    return "100% or more" if noise >= 1.0 else f"{noise:.0%}"


def _outside(rows: Sequence[Row]) -> list[str]:
    """For each reason to be outside of what was calibrated a line, with the rows that it is about."""
    varying = varying_of(rows)
    about: dict[str, list[str]] = {}
    for row in rows:
        for reason in row.outside:
            about.setdefault(reason, []).append(row.configuration.short(varying))
    return [
        f"A prediction has a wider interval because it is outside the calibrated range: {reason} "
        f"({'; '.join(which[:3])}{f' and {len(which) - 3} more' * (len(which) > 3)})."
        for reason, which in about.items()
    ]


def _about_the_record(prediction: Predicted) -> list[str]:
    """What can be checked of the replay, and what of the record is not in the rows."""
    graph = prediction.trace.graph
    lines = []
    recorded_s = graph.makespan_ns / 1e9
    if prediction.check_s is not None and recorded_s > 0:
        both = " Both times include the start of the first worker." if graph.cold_start_ns else ""
        lines.append(
            f"Check: a replay on the recorded cluster takes {prediction.check_s:.4g} s. The recorded run took "
            f"{recorded_s:.4g} s ({prediction.check_s / recorded_s - 1:+.1%}).{both}"
        )
    if graph.delayed_ns > _DELAYED_MIN * graph.makespan_ns:
        lines.append(
            f"During the recording, ready tasks waited for a core for {graph.delayed_ns / 1e9:.3g} s in all. Other "
            f"programs used the machine, or the machine has fewer cores than CPUs. Predictions leave out these waits."
        )
    if prediction.cold_start_s:
        lines.append(
            f"The predicted clusters start with the program. The first workers of each cluster take "
            f"{prediction.cold_start_s:.3g} s to start."
        )
    elif graph.cold_start_ns:
        lines.append(
            f"The predictions assume that the cluster already runs. In the record, the first worker took "
            f"{graph.cold_start_ns / 1e9:.3g} s to start. The option `--cold-start recorded` adds this time."
        )
    return lines


def _span(row: Row) -> str:
    return f"{row.makespan_s:.4g} s ({row.low_s:.4g} to {row.high_s:.4g})"


def path_words(row: Row, path: Sequence[Stretch]) -> str:
    """The critical path of a row in a sentence."""
    parts = by_function(path)
    total_s = sum(computed_s + waited_s for _, computed_s, waited_s in parts) or 1.0
    shares = [
        f"{name} {(computed_s + waited_s) / total_s:.0%}" + (f" (waits {waited_s / total_s:.0%})" if waited_s else "")
        for name, computed_s, waited_s in parts[:5]
    ]
    return f"Critical path of {row.configuration.words}: {', '.join(shares)}."


def memory_lines(prediction: Predicted, row: Row) -> list[str]:
    """What a node holds at most, the least that it needs, and who is ended for lack of memory."""
    needs = prediction.memory(row)
    words = row.configuration.words
    lines = [
        f"Memory with {words}: the store of a node holds at most {size_words(row.store_peak_bytes)}.",
        f"The smallest store that does not spill: {size_words(needs.store_bytes)}.",
    ]
    if not needs.heap_bytes:
        lines.append("The record does not have the memory use of tasks: record the program again, in real mode.")
        return lines
    lines.append(f"The workers of a node use at most {size_words(row.heap_peak_bytes)}, without the store.")
    lines.append(f"The smallest memory with which no worker is killed: {size_words(needs.memory_bytes)}.")
    for at_ns, node, name in row.killed[:_KILLED_MAX]:
        lines.append(f"The memory monitor of {node} kills a worker that runs {name} at {at_ns / 1e9:.3g} s.")
    if len(row.killed) > _KILLED_MAX:
        lines.append(f"The memory monitors kill {len(row.killed) - _KILLED_MAX} more workers.")
    return lines


HELP_COLUMNS = ("change", "makespan", "faster by", "90 % interval", "cost")


def help_cells(helps: Sequence[Help]) -> list[list[str]]:
    """Single changes for people, under HELP_COLUMNS."""
    rows = []
    for it in helps:
        if it.difference is None:
            rows.append([it.words, "cannot run", "", "", ""])
            continue
        gain = it.difference
        cost = cost_words(it.cost)
        rows.append(
            [it.words, f"{it.makespan_s:.4g} s", f"{gain.gain:.1%}", f"{gain.low:.0%} to {gain.high:.0%}", cost]
        )
    return rows


CAUSE_COLUMNS = ("cause", "seconds", "share")


def causes_words(row: Row) -> str:
    """What the table of causes is about."""
    return f"Causes of the makespan on {row.configuration.words}, with the recorded times:"


def cause_cells(causes: Sequence[Cause]) -> list[list[str]]:
    """The table of causes for people, under CAUSE_COLUMNS; what plays no part is left out."""
    return [[cause.name, f"{cause.seconds:.4g} s", f"{cause.share:.0%}"] for cause in causes if cause.seconds > 0]


COLUMNS = ("cluster", "makespan", "90 % interval", "CPU use", "moved", "spilled", "repeated", "cost")
_ALWAYS, _OF_ONE = (0, 1, 2), (3, 7)
"""Places in COLUMNS: those of every table; those that a table of one row has, too."""


def varying_of(rows: Sequence[Row]) -> frozenset[str]:
    """What the configurations differ in: the rest need not be said in each row."""
    names = [it.name for it in fields(Configuration)]
    return frozenset(name for name in names if len({getattr(row.configuration, name) for row in rows}) > 1)


def columns_shown(rows: Sequence[Sequence[str]]) -> tuple[list[int], list[str]]:
    """The places in COLUMNS that tell rows apart, and the others in words; what is empty in all rows is left out."""
    shown, equal = list(_ALWAYS), []
    for number in range(len(_ALWAYS), len(COLUMNS)):
        values = {row[number] for row in rows if row[number]}
        if len(values) > 1 or (len(rows) == 1 and values and number in _OF_ONE):
            shown.append(number)
        elif values:
            equal.append(f"{COLUMNS[number]} {values.pop()}")
    return shown, equal


def cost_words(cost: float | None) -> str:
    """A price with four digits and no exponent: 0.000006416; nothing where prices are not known."""
    return "" if cost is None else format(Decimal(f"{cost:.4g}"), "f")


def cells(row: Row, varying: frozenset[str]) -> list[str]:
    """A row for people, under COLUMNS; of its configuration, the nodes, the CPUs and what varies."""
    words = row.configuration.short(varying)
    if row.lacks:
        return [words, "cannot run", "", "", "", "", "", ""]
    return [
        words,
        f"{row.makespan_s:.4g} s",
        f"{row.low_s:.4g} to {row.high_s:.4g} s",
        f"{row.utilisation:.0%}",
        size_words(row.moved_bytes),
        size_words(row.spilled_bytes),
        f"{row.remade_s:.4g} s",
        cost_words(row.cost),
    ]
