"""The requests for workers in the logs of the owners, and the refusals that came back.

A task that got a worker has rows in the trace. One that did not has only its owner's request, which tasks with the same
demands share.
"""

from __future__ import annotations

from dataclasses import dataclass

from dualray.report.record import Record
from dualray.shared.model.commands import Send
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import LeaseRefused, LeaseRequested, TaskSubmitted
from dualray.shared.model.ids import HEAD
from dualray.shared.model.specs import FunctionTemplate, LeaseShape, TaskSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """The head or a node refused a request: when the owner learned it, and why."""

    time_ns: int
    error: ErrorInfo


class Requests:
    """The requests of a run.

    Attributes:
        specs: of each task by its id in hex, what its owner's log says of it.
        by_id: of each request, when it was made, by which owner, and the request.
        refusals: by the id of the request.
    """

    def __init__(self, record: Record) -> None:
        self.specs: dict[str, TaskSpec] = {}
        self.by_id: dict[str, tuple[int, str, LeaseRequested]] = {}
        self.refusals: dict[str, Refusal] = {}
        for owner in record.owners():
            if owner == HEAD:
                continue
            for decision in record.decisions(owner):
                if isinstance(decision.event, TaskSubmitted):
                    self.specs[decision.event.spec.task_id.hex()] = decision.event.spec
                elif isinstance(decision.event, LeaseRefused):
                    refusal = Refusal(time_ns=decision.now_ns, error=decision.event.error)
                    self.refusals[decision.event.request_id] = refusal
                for command in decision.commands:
                    if isinstance(command, Send) and isinstance(command.message, LeaseRequested):
                        self.by_id.setdefault(command.message.request_id, (decision.now_ns, owner, command.message))

    def of(self, spec: TaskSpec) -> tuple[int, str, LeaseRequested] | None:
        """The last request for a worker for such a task by its owner; None: there is none, as for calls of actors."""
        found = [
            entry
            for entry in self.by_id.values()
            if entry[1] == spec.owner and _demands(entry[2].shape) == _demands(spec.template)
        ]
        return found[-1] if found and spec.actor_id is None else None

    def refusal_of(self, spec: TaskSpec) -> Refusal | None:
        """Why such a task gets no worker, if its owner has been told."""
        asked = self.of(spec)
        return None if asked is None else self.refusals.get(asked[2].request_id)


def _demands(of: LeaseShape | FunctionTemplate) -> tuple[object, ...]:
    return of.name, of.placement, of.resources, of.strategy, of.runtime_env
