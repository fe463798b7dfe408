"""The processes of a replay share the recorded program, the ids of this run, and its result.

An attempt that runs again submits tasks with ids of its own. A script refers to objects by the ids of the recorded run,
which are looked up in what has been submitted here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from dualray.exceptions import DualrayError, TaskError
from dualray.recording.graph import Graph, TaskNode
from dualray.shared.core.failures import as_exception
from dualray.shared.model.commands import RunTask
from dualray.shared.model.errors import ErrorInfo
from dualray.shared.model.events import TaskPushed
from dualray.shared.model.ids import Address, FunctionID, NodeID, PlacementGroupID
from dualray.shared.model.resources import CPU, UNITS, Resources, from_units, in_plain_names
from dualray.shared.model.specs import (
    DEFAULT_STRATEGY,
    FunctionTemplate,
    GroupStrategy,
    PlacementGroupSpec,
    Ref,
    Strategy,
    StrategyKind,
    Streaming,
)
from dualray.sim.kernel.cores import Cores
from dualray.sim.replay.replayed import Replayed, Step

_TASK_ID_BYTES = 16


class Rerun:
    """See the module.

    Args:
        scale_of: by what the computing of an attempt is multiplied: drawn durations.
        since: the function from whose first submission on time is told apart.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        scale_of: Callable[[TaskNode, int], float],
        since: str | None,
        with_spans: bool,
        with_steps: bool,
    ) -> None:
        self.graph = graph
        self.scale_of = scale_of
        self.since = since
        self.since_ns = 0
        self.began_ns = 0
        self.sizes = dict(graph.sizes)
        self.refs: dict[bytes, Ref] = {}
        """Of each object of the recorded run, what it is here."""
        self.submitted: dict[bytes, TaskNode] = {}
        self.nested: dict[bytes, tuple[Ref, ...]] = {}
        """References in results, by object."""
        self.templates = [_template(name_and_words.name, name_and_words.words) for name_and_words in graph.templates]
        self.cpus = [in_plain_names(template.resources).get(CPU) / UNITS for template in self.templates]
        """CPUs that a call of each template holds."""
        self.result = Replayed(spans=[] if with_spans else None, steps={} if with_steps else None)
        if with_steps:
            self.result.moves = []
        self.is_over = False
        self.ended: list[str] = []
        """Why the program has ended, once it has."""
        self.raised: DualrayError | None = None
        """With what the program has failed."""
        self.causes: dict[str, ErrorInfo] = {}
        """What made tasks fail here that did not fail when they were recorded, by its words."""
        self.is_noted = False
        """Whether anybody wants to know what drivers and workers do."""
        self.is_steady = True
        """Nothing stands still or gets slow."""
        self.is_simple = True
        """Whether what a task does is seen by its owner alone."""
        self.cores: dict[NodeID, Cores] = {}

    # ---- Steps, when they are wanted -------------------------------------------------------------------------

    def begins_step(self, task: RunTask | TaskPushed, node: str, before: bytes, now_ns: int) -> None:
        """An attempt begins on a worker that has run another task before."""
        step = self._step_of(task)
        began_ns = now_ns - self.began_ns
        if step.node:
            step.begin_again(began_ns)
        step.node, step.began_ns, step.before = node, began_ns, before

    def begins_to_compute(self, task: RunTask | TaskPushed | None, now_ns: int, work_ns: float) -> None:
        """It computes so much."""
        began_ns = now_ns - self.began_ns
        self._step_of(task).computing.append((began_ns, began_ns, work_ns))

    def has_computed(self, task: RunTask | TaskPushed | None, now_ns: int) -> None:
        """What it began last is done."""
        computing = self._step_of(task).computing
        computing[-1] = (computing[-1][0], now_ns - self.began_ns, computing[-1][2])

    def _step_of(self, task: RunTask | TaskPushed | None) -> Step:
        steps = self.result.steps
        assert steps is not None
        return steps[b"" if task is None else task.spec.task_id]

    # ---- The end ---------------------------------------------------------------------------------------------

    def program_ended(self, why: str, error: type[DualrayError] | None = None) -> None:
        """The driver's script is over, or has failed with an error of this class."""
        self.is_over = True
        self.ended.append(why)
        self.result.failed = why
        if error is not None:
            self.raised = error(why)

    def program_fails(self, error: ErrorInfo) -> None:
        """The driver meets an error that it did not meet when it was recorded."""
        self.program_ended(error.message)
        cause = self.causes.get(error.message)
        self.raised = as_exception(error, None)
        if cause is not None and isinstance(self.raised, TaskError):  # a task has met it
            self.raised = TaskError("a task", error.message, as_exception(cause, None)).as_instance_of_cause()

    def group_of(self, group_id: PlacementGroupID, words: str, owner: Address) -> PlacementGroupSpec:
        """A recorded placement group."""
        known = json.loads(words)
        return PlacementGroupSpec(
            group_id=group_id,
            bundles=tuple([_resources(bundle) for bundle in known["bundles"]]),
            strategy=GroupStrategy(known["strategy"]),
            owner=owner,
            is_detached=known["is_detached"],
        )

    def expects_failure(self, object_id: bytes) -> bool:
        """Whether what made an object has failed when it was recorded, too."""
        node = self.submitted.get(object_id[:_TASK_ID_BYTES])
        while node is not None and not (node.script.error or node.may_fail):
            failing = [self.submitted.get(dep[:_TASK_ID_BYTES]) for dep in node.deps]
            node = next((it for it in failing if it is not None and (it.script.error or it.may_fail)), None)
        return node is not None

    def nested_in(self, object_id: bytes) -> tuple[Ref, ...]:
        """The references in a result."""
        return self.nested.get(object_id, ())

    def account_for(
        self, task: RunTask | TaskPushed, node: str, worker: Address, began_ns: int, now_ns: int, used_ns: float
    ) -> None:
        """An attempt has ended, which has used so much CPU time."""
        result = self.result
        used = round(used_ns)
        result.busy_ns += used
        result.by_node[node] = result.by_node.get(node, 0) + used
        if task.attempt:
            result.lost_ns += now_ns - began_ns
        if result.spans is not None:
            span = (task.spec.template.name, node, worker, began_ns, now_ns, task.attempt)
            result.spans.append(span)


def _template(name: str, words: Mapping[str, Any]) -> FunctionTemplate:
    return FunctionTemplate(
        function_id=FunctionID(bytes.fromhex(words["function"])),
        name=name,
        resources=_resources(words["resources"]),
        placement=_resources(words["placement"]),
        num_returns=words["num_returns"],
        max_retries=words["max_retries"],
        retry_exceptions=words["retry_exceptions"],
        strategy=_strategy(words),
        streaming=Streaming(words.get("streaming", "")),
        items_ahead_max=words.get("items_ahead_max", 0),
        max_calls=words.get("max_calls", 0),
        runtime_env=words.get("runtime_env", ""),
    )


def _resources(amounts: Mapping[str, float]) -> Resources:
    return from_units({name: round(amount * UNITS) for name, amount in amounts.items()})


def _strategy(words: Mapping[str, Any]) -> Strategy:
    """Where a call may run; labels are left out: the nodes of a prediction have none."""
    kind = words["strategy"]
    if kind == StrategyKind.SPREAD:
        return Strategy(kind=StrategyKind.SPREAD)
    if kind == StrategyKind.NODE_AFFINITY:
        return Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID(words["node"]), soft=words["soft"])
    if kind == StrategyKind.PLACEMENT_GROUP:
        return Strategy(
            kind=StrategyKind.PLACEMENT_GROUP,
            group=PlacementGroupID(bytes.fromhex(words["group"])),
            bundle=words["bundle"],
            captures=words["captures"],
        )
    return DEFAULT_STRATEGY
