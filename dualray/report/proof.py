"""The proof that a run was decided by the shared machines alone, from the logs and traces that it left.

Two things are checked for each process (dualray/shared/proof/trace.py says why both are needed): a fresh machine
derives every command of the log again, and every action of the trace is paired with exactly one command. A process that
was killed may have been given commands that it did not live to carry out, and may have lost the last rows of its trace:
its commands without an action are counted apart and named. An action without a command is an orphan whoever did it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dualray.report.lineage import is_of_node
from dualray.report.traces import decision_logs, natural, read_traces
from dualray.shared.model.ids import Address, node_of
from dualray.shared.proof.decision_log import Difference, Log, all_commands, read_log, replay
from dualray.shared.proof.trace import ACTIONS, Key, Match, TraceEvent, TraceKind, match_actions

_STOPPED = "stopped"
"""How the reason of a WORKER_ENDED row begins when the node manager was told to end the worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessProof:
    """What was found about one process.

    Attributes:
        decisions, commands: how many were derived again, and were equal.
        difference: the first that was not.
        has_log: False for a process that acted and left no log: all its actions are orphans.
        is_cut_off: the log ends in the middle of a decision.
        was_killed: by a fault, or by a signal.
    """

    process: str
    decisions: int
    commands: int
    difference: Difference | None
    match: Match
    has_log: bool
    is_cut_off: bool
    was_killed: bool

    @property
    def orphans(self) -> int:
        """Actions without a command, and commands without an action unless the process was killed."""
        unfulfilled = 0 if self.was_killed else len(self.match.commands_without_action)
        return len(self.match.actions_without_command) + unfulfilled

    @property
    def cut_short(self) -> Sequence[Key]:
        """What a killed process was told and did not do, or of which the trace was lost."""
        return self.match.commands_without_action if self.was_killed else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What was found about a run."""

    processes: Sequence[ProcessProof]

    @property
    def decisions(self) -> int:
        return sum(process.decisions for process in self.processes)

    @property
    def commands(self) -> int:
        """Commands that a fresh machine derived again, equal."""
        return sum(process.commands for process in self.processes)

    @property
    def differences(self) -> Mapping[str, Difference]:
        """By process, the first command that a fresh machine derived otherwise."""
        return {process.process: process.difference for process in self.processes if process.difference is not None}

    @property
    def matched(self) -> int:
        """Actions that are paired with exactly one command."""
        return sum(process.match.matched for process in self.processes)

    @property
    def orphans(self) -> int:
        return sum(process.orphans for process in self.processes)

    @property
    def cut_short(self) -> Mapping[str, Sequence[Key]]:
        """By killed process, commands of which no action was seen."""
        return {process.process: process.cut_short for process in self.processes if process.cut_short}

    @property
    def is_exact(self) -> bool:
        """All commands equal, no orphans."""
        return not self.differences and self.orphans == 0


def check_directory(directory: Path) -> Proof:
    """Replay every log of a run and match it with the trace.

    Raises:
        ValueError: no logs or no trace in the directory, or a file that cannot be read; the message names it.
    """
    events = read_traces(directory)
    killed = killed_processes(events)
    actions: dict[str, list[TraceEvent]] = {}
    for event in events:
        if event.kind in ACTIONS:
            actions.setdefault(event.process, []).append(event)
    logs: dict[str, list[Log]] = {}
    for path in decision_logs(directory):
        log = load_log(path)
        logs.setdefault(log.spec.address, []).append(log)
    processes = [
        _check(lives, actions.pop(address, []), was_killed=address in killed) for address, lives in logs.items()
    ]
    processes += [
        ProcessProof(
            process=process,
            decisions=0,
            commands=0,
            difference=None,
            match=match_actions(rows, ()),
            has_log=False,
            is_cut_off=False,
            was_killed=process in killed,
        )
        for process, rows in actions.items()
    ]
    return Proof(processes=sorted(processes, key=lambda process: natural(process.process)))


def load_log(path: Path) -> Log:
    """One decision log.

    Raises:
        ValueError: it is none, or one of another version; the message names the file.
    """
    try:
        return read_log(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check(lives: Sequence[Log], actions: Sequence[TraceEvent], *, was_killed: bool) -> ProcessProof:
    """One address: a node manager has a log for each incarnation, everybody else has one."""
    replayed = [replay(log) for log in lives]
    return ProcessProof(
        process=lives[0].spec.address,
        decisions=sum(found.decisions for found in replayed),
        commands=sum(found.commands for found in replayed),
        difference=next((found.difference for found in replayed if found.difference is not None), None),
        match=match_actions(actions, [command for log in lives for command in all_commands(log)]),
        has_log=True,
        is_cut_off=any(log.is_cut_off for log in lives),
        was_killed=was_killed,
    )


class _Killed:
    """The processes that a trace says were killed; membership is asked by address."""

    def __init__(self, addresses: frozenset[str], nodes: frozenset[str]) -> None:
        self._addresses = addresses
        self._nodes = nodes

    def __contains__(self, address: str) -> bool:
        return address in self._addresses or node_of(Address(address)) in self._nodes


def killed_processes(events: Iterable[TraceEvent]) -> _Killed:
    """Who was killed: named by a fault, on a node that a fault names, or ended otherwise than by its node manager."""
    addresses: set[str] = set()
    nodes: set[str] = set()
    for event in events:
        if event.kind is TraceKind.FAULT:
            (nodes if is_of_node(event) else addresses).add(event.subject)
        elif event.kind is TraceKind.WORKER_ENDED and not event.other.startswith(_STOPPED):
            addresses.add(event.subject)
    return _Killed(frozenset(addresses), frozenset(nodes))
