"""Questions to the head and to other processes, and orders that no task carries: names, groups, kill and cancel."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dualray.exceptions import DualrayError
from dualray.shared.core.failures import as_exception
from dualray.shared.core.state import PendingWait
from dualray.shared.core.waiting import CoreWaiting
from dualray.shared.machines.state_rows import TASK_TIMES
from dualray.shared.model.events import (
    ActorKillAsked,
    ActorNameAsked,
    ActorNameReported,
    CancelAsked,
    ClusterStateAsked,
    PlacementGroupAsked,
    PlacementGroupRemovalAsked,
    ResourcesWanted,
    RowsAsked,
)
from dualray.shared.model.ids import (
    HEAD,
    ActorID,
    Address,
    PlacementGroupID,
    TaskID,
    child_task_id,
    job_of,
    own_namespace,
    task_of,
)
from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import LabelTerm, NamedActor, NodeState, PlacementGroupSpec, Ref


class CoreQueries(CoreWaiting):
    """Asks the cluster, and waits for its answer."""

    def cluster_state(self) -> tuple[NodeState, ...]:
        """The nodes, as the head sees them."""
        wait_id = self._next_wait()
        self._wait_for(ClusterStateAsked(wait_id=wait_id))
        return self.machine.take_cluster_state(wait_id)

    def rows_of(
        self, addresses: Sequence[Address], table: str, timeout_ns: int
    ) -> dict[Address, list[dict[str, Any]] | None]:
        """The rows that processes have of a table (state_rows.py); None of one that has not answered in time."""
        asked = [
            RowsAsked(wait_id=self._next_wait(), table=table, to=address, timeout_ns=timeout_ns)
            for address in addresses
        ]
        waits = [PendingWait(self.host.new_signal()) for _ in asked]
        for question, wait in zip(asked, waits, strict=True):
            self._begin_wait(question, wait)
        found: dict[Address, list[dict[str, Any]] | None] = {}
        for question, wait in zip(asked, waits, strict=True):
            self._end_wait(wait)
            rows = self.machine.take_rows(question.wait_id)
            found[question.to] = [json.loads(row) for row in rows] if rows is not None else None
        return found

    def task_times(self, addresses: Sequence[Address], timeout_ns: int) -> tuple[list[dict[str, Any]], list[str]]:
        """When tasks began and ended that processes have run (task_times.py), and who has not answered in time."""
        known = self.host.all_task_times()
        if known is not None:
            return [*known], []
        answers = self.rows_of(addresses, TASK_TIMES, timeout_ns)
        missing = [str(address) for address, rows in answers.items() if rows is None]
        return [row for rows in answers.values() for row in rows or ()], missing

    def pids(self) -> Mapping[str, int]:
        """The pids of this process and of the workers of the cluster, by address, as far as this machine knows them."""
        return self.host.pids()

    def head_rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of one of the head's tables.

        Raises:
            DualrayError: the head has not answered.
        """
        rows = self.rows_of([HEAD], table, self.config.state_timeout_ns)[HEAD]
        if rows is None:
            raise DualrayError(f"the head process did not answer within {self.config.state_timeout_ns / 1e9:g} s")
        return rows

    # ---- Named actors --------------------------------------------------------------------------------------

    def find_actor(self, name: str, namespace: str) -> NamedActor:
        """The actor of a name; `namespace` "" is the one that this code runs in.

        Raises:
            ActorHandleNotFoundError: there is none.
        """
        actor = self._ask_for_name(name, namespace).actor
        assert actor is not None
        return actor

    def _ask_for_name(
        self, name: str, namespace: str, claim: NamedActor | None = None, *, get_if_exists: bool = False
    ) -> ActorNameReported:
        wait_id = self._next_wait()
        wait = self._wait_for(
            ActorNameAsked(
                wait_id=wait_id,
                name=name,
                namespace=namespace,
                job=self._job(),
                claim=claim,
                get_if_exists=get_if_exists,
            )
        )
        if wait.error is not None:
            raise as_exception(wait.error, None)
        return self.machine.take_named_actor(wait_id)

    def _job(self) -> int:
        """The job whose namespace this code runs in: inside an actor, that of its maker."""
        constructor = self.execution.constructor
        return job_of(constructor.task_id if constructor is not None else self.execution.task_id)

    @property
    def namespace(self) -> str:
        """The namespace in which this code names actors."""
        job = self._job()
        chosen = {row["job"]: row["namespace"] for row in self.head_rows("namespaces")}
        return str(chosen.get(job) or own_namespace(job))

    def kill_actor(self, handle: Ref, *, no_restart: bool) -> None:
        """End an actor now."""
        self.dispatch(ActorKillAsked(actor_id=ActorID(handle.object_id[:16]), no_restart=no_restart))

    def cancel(self, ref: Ref, *, force: bool, recursive: bool) -> None:
        """End the task that makes an object.

        Raises:
            ValueError: it is a method of an actor, and `force` would end the actor.
        """
        with self.host.lock:
            spec = self.machine.submitted(task_of(ref.object_id))
            if force and spec is not None and spec.actor_id is not None:
                raise ValueError(
                    f"cancel: force=True is not supported for methods of actors, and {spec.template.name} is one: use "
                    f"force=False, or dualray.kill(actor)"
                )
            self.dispatch(CancelAsked(ref=ref, force=force, recursive=recursive))

    # ---- Placement groups ----------------------------------------------------------------------------------

    def create_placement_group(self, spec: PlacementGroupSpec) -> PlacementGroupID:
        """Have the head note a placement group, under an id that this call gives it.

        Raises:
            PlacementGroupUnschedulableError: the cluster can never take it, or its name is taken.
        """
        spec = replace(spec, group_id=PlacementGroupID(self._next_task_id()))
        wait = self._wait_for(PlacementGroupAsked(wait_id=self._next_wait(), spec=spec))
        if wait.error is not None:
            raise as_exception(wait.error, None)
        return spec.group_id

    def remove_placement_group(self, group_id: PlacementGroupID) -> None:
        """Have the head remove a placement group, with what runs in it."""
        self.dispatch(PlacementGroupRemovalAsked(group_id=group_id))

    def request_resources(self, demands: Mapping[tuple[Resources, tuple[LabelTerm, ...]], int]) -> None:
        """Have the cluster be large enough for so many of each bundle, in place of what this job wanted before.

        Raises:
            ValueError: there are more kinds of bundles than `bundles_max`.
        """
        if len(demands) > self.config.bundles_max:
            raise ValueError(
                f"request_resources: the request has {len(demands)} different bundles, but the limit bundles_max "
                f"allows at most {self.config.bundles_max}"
            )
        self.dispatch(
            ResourcesWanted(
                requester=self.address,
                job=self._job(),
                bundles=tuple([bundle for bundle, _ in demands]),
                counts=tuple(demands.values()),
                selectors=tuple([terms for _, terms in demands]),
            )
        )

    def _next_task_id(self) -> TaskID:
        with self.host.lock:
            execution = self.execution
            execution.submitted += 1
            return child_task_id(execution.task_id, execution.attempt, execution.submitted)
