"""The verbs of a process whose run is recorded: each is Ray's, and is noted. notes.py says how.

`RunOnRay` makes the file when the program ends.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

import msgpack
import ray

from dualray.core_terms import actor_demands, placed, task_demand
from dualray.on_ray import terms
from dualray.on_ray.actors import PreparedClass, PreparedMethod
from dualray.on_ray.anchors import Watched
from dualray.on_ray.notes import (
    NO_RESULT,
    Collector,
    Notes,
    RecordTo,
    id_of,
    object_of,
    size_of,
    sizes_of,
    task_of,
    words_of_group,
)
from dualray.on_ray.references import Actor, Item, Value
from dualray.on_ray.tasks import PreparedFunction
from dualray.on_ray.verbs import RayVerbs
from dualray.options import MethodOptions, Returns, TaskOptions
from dualray.recording.file import make_record, write_record
from dualray.recording.recorded import NO_TIMEOUT, template_words
from dualray.recording.usage import machine_words
from dualray.shared.labels import parse_selector
from dualray.shared.model.codec import SURROGATES
from dualray.shared.model.ids import FunctionID, NodeID, function_id
from dualray.shared.model.resources import NOTHING, Resources, told
from dualray.shared.model.specs import DEFAULT_STRATEGY, FunctionTemplate, Strategy, StrategyKind, Streaming
from dualray.user_verbs import ActorInfo, ClassRequest, Collect, GroupRequest, Shipped

_INLINE_BYTES_MAX = 100 * 1024
"""Ray sends results below this along with the news of the end (`max_direct_call_object_size`)."""
_QUIET_S = 0.5
"""When for so long no process has sent notes, none has any."""
_PATIENCE_S = 10.0


class RecordedVerbs(RayVerbs):
    """`UserVerbs` of such a process."""

    __slots__ = ("_counts", "_lock", "notes")

    def __init__(self, *, is_worker: bool, waits_for_nodes: bool, notes: Notes) -> None:
        super().__init__(is_worker=is_worker, waits_for_nodes=waits_for_nodes)
        self.notes = notes
        self.record_to = notes.record_to
        self._counts: dict[bytes, int] = {}
        self._lock = RLock()  # a finalizer may come while it is held

    # ---- Calls -----------------------------------------------------------------------------------------------------

    def prepare_function(
        self,
        target: Any,
        options: TaskOptions,
        returns: Returns,
        name: str,
        *,
        captured: bool,
        collect: Collect,
        shipped: Shipped | None = None,
    ) -> PreparedFunction:
        asked = returns
        if not (returns.number or returns.kind):  # Ray says of a result alone which task makes it
            asked, target = replace_number(returns, 1), without_result(target)
        prepared = super().prepare_function(target, options, asked, name, captured=captured, collect=collect)
        demand = task_demand(options.num_cpus, options.num_gpus, options.memory, options.resources)
        demand, _, strategy = placed(options.scheduling_strategy, options.label_selector, demand, demand, name, None)
        template = FunctionTemplate(
            function_id=_function(name),
            name=options.name or name,
            resources=demand,
            placement=demand,
            num_returns=returns.number,
            max_retries=options.max_retries,
            retry_exceptions=bool(options.retry_exceptions),
            max_calls=options.max_calls,
            strategy=self._named(strategy),
            streaming=Streaming(returns.kind),
            items_ahead_max=returns.ahead_max,
        )
        return prepared._replace(words=(template.name, template_words(template)), returns=returns)

    def _named(self, strategy: Strategy) -> Strategy:
        """A strategy with the record's name of its node."""
        if strategy.kind is not StrategyKind.NODE_AFFINITY or strategy.node is None:
            return strategy
        return replace(strategy, node=NodeID(self.notes.record_to.names.get(strategy.node, strategy.node)))

    def submit(self, prepared: PreparedFunction, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> list[Any]:
        began_ns = time.time_ns()
        sizes = sizes_of(args, kwargs)
        spent_ns = time.time_ns() - began_ns
        made = super().submit(prepared, args, kwargs)
        if made:  # none of a call that fails at once, without results
            self._note_call(prepared.words, made[0].ray.binary(), began_ns, sizes, spent_ns)
        return made if prepared.returns.number else []

    def call(self, prepared: PreparedFunction, args: Sequence[Any], kwargs: Mapping[str, Any], /) -> Value:
        began_ns = time.time_ns()
        sizes = sizes_of(args, kwargs)
        spent_ns = time.time_ns() - began_ns
        made = super().call(prepared, args, kwargs)
        self._note_call(prepared.words, made.object_id, began_ns, sizes, spent_ns)
        return made

    def _note_call(
        self,
        words: tuple[str, str],
        ray_id: bytes,
        began_ns: int,
        sizes: tuple[int, tuple[bytes, ...], tuple[bytes, ...]],
        spent_ns: int,
        actor: bytes = b"",
        creates: tuple[int, int, bool] | None = None,
    ) -> None:
        noting_ns = time.time_ns()
        notes = self.notes
        size, deps, nested = sizes
        task, attempt = notes.running
        number = notes.template(*words)
        child = task_of(ray_id) if creates is None else ray_id
        notes.note("submit", began_ns, task, attempt, child, number, size, deps, nested, actor, creates, 0)
        notes.spent_ns += spent_ns + time.time_ns() - noting_ns

    # ---- Actors ----------------------------------------------------------------------------------------------------

    def prepare_class(self, request: ClassRequest) -> PreparedClass:
        prepared = super().prepare_class(request)
        options, name = request.options, request.name
        placement, held = actor_demands(options.num_cpus, options.num_gpus, options.memory, options.resources)
        said = options.scheduling_strategy, options.label_selector
        placement, held, strategy = placed(*said, placement, held, name, None)
        words = template_words(_plain(name, held, placement, self._named(strategy), num_returns=0))
        is_concurrent = request.is_async or request.max_concurrency > 1 or bool(options.concurrency_groups)
        creates = (options.max_restarts, options.max_task_retries, is_concurrent)
        return prepared._replace(words=(name, words), creates=creates)

    def create_actor(self, prepared: PreparedClass, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActorInfo:
        began_ns = time.time_ns()
        sizes = sizes_of(args, kwargs)
        spent_ns = time.time_ns() - began_ns
        found = super().create_actor(prepared, args, kwargs)
        if found.cls is None:  # else there was one of its name
            actor = found.reference.object_id
            self._note_call(prepared.words, actor, began_ns, sizes, spent_ns, creates=prepared.creates)
        return found

    def prepare_method(
        self, actor: ActorInfo, name: str, options: MethodOptions, returns: Returns, *, is_last: bool, collect: Collect
    ) -> PreparedMethod:
        asked = returns if returns.number else replace_number(returns, 1)
        prepared = super().prepare_method(actor, name, options, asked, is_last=is_last, collect=collect)
        retries = options.max_task_retries
        template = replace(
            _plain(prepared.name, NOTHING, NOTHING, DEFAULT_STRATEGY, num_returns=returns.number),
            max_retries=0 if is_last else actor.limits.max_task_retries if retries is None else retries,
            retry_exceptions=bool(options.retry_exceptions),
            concurrency_group=options.concurrency_group or "",
            streaming=Streaming(returns.kind),
            items_ahead_max=returns.ahead_max,
        )
        return prepared._replace(words=(template.name, template_words(template)), returns=returns)

    def submit_method(
        self, actor: Actor, prepared: PreparedMethod, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> list[Any]:
        began_ns = time.time_ns()
        sizes = sizes_of(args, kwargs)
        spent_ns = time.time_ns() - began_ns
        made = super().submit_method(actor, prepared, args, kwargs)
        self._note_call(prepared.words, made[0].ray.binary(), began_ns, sizes, spent_ns, actor.object_id)
        return made if prepared.returns.number else []

    def call_method(
        self, actor: Actor, prepared: PreparedMethod, args: Sequence[Any], kwargs: Mapping[str, Any], /
    ) -> Value:
        began_ns = time.time_ns()
        sizes = sizes_of(args, kwargs)
        spent_ns = time.time_ns() - began_ns
        made = super().call_method(actor, prepared, args, kwargs)
        self._note_call(prepared.words, made.object_id, began_ns, sizes, spent_ns, actor.object_id)
        return made

    def kill_actor(self, actor: Actor, *, no_restart: bool) -> None:
        self._note("kill", actor.object_id, no_restart)
        super().kill_actor(actor, no_restart=no_restart)

    def cancel(self, reference: Any, *, force: bool, recursive: bool) -> None:
        super().cancel(reference, force=force, recursive=recursive)
        self._note("cancel", id_of(reference), force, recursive)

    # ---- Values ----------------------------------------------------------------------------------------------------

    def _note(self, kind: str, *rest: Any) -> None:
        task, attempt = self.notes.running
        self.notes.note(kind, time.time_ns(), task, attempt, *rest)

    def put(self, value: Any, /) -> Value:
        began_ns = time.time_ns()
        made = super().put(value)
        ended_ns = time.time_ns()
        size, nested = size_of(value)
        task, attempt = self.notes.running
        self.notes.note("put", began_ns, ended_ns, task, attempt, object_of(made.object_id), size, nested)
        self.notes.spent_ns += time.time_ns() - ended_ns
        return made

    def get(self, references: Sequence[Any], timeout_ns: int | None, /) -> list[Any]:
        began_ns = time.time_ns()
        try:
            return super().get(references, timeout_ns)
        finally:
            ended_ns = time.time_ns()
            task, attempt = self.notes.running
            ids = tuple([object_of(each.object_id) for each in references])
            self.notes.note("get", began_ns, ended_ns, task, attempt, ids, 0)
            self.notes.spent_ns += time.time_ns() - ended_ns

    def wait(
        self, references: Sequence[Any], /, *, num_returns: int, timeout_ns: int | None, fetch_local: bool
    ) -> set[bytes]:
        began_ns = time.time_ns()
        ready = super().wait(references, num_returns=num_returns, timeout_ns=timeout_ns, fetch_local=fetch_local)
        ended_ns = time.time_ns()
        task, attempt = self.notes.running
        known = [each for each in references if not isinstance(each, Item) or each.ray is not None]
        self.notes.note(
            *("wait", began_ns, ended_ns, task, attempt, tuple([object_of(each.object_id) for each in known]), 0),
            *(num_returns, NO_TIMEOUT if timeout_ns is None else timeout_ns),
            *(tuple([object_of(each.object_id) for each in known if each.object_id in ready]), fetch_local),
        )
        self.notes.spent_ns += time.time_ns() - ended_ns
        return ready

    def take_item(self, item: Any) -> tuple[bool, Any]:
        generator = task_of(item.stream.object_id)
        taken = super().take_item(item)
        if taken[1] is not None:
            self._note("take", generator)
        return taken

    def adopt(self, reference: Any, /) -> None:
        with self._lock:
            self._counts[reference.object_id] = self._counts.get(reference.object_id, 1) + 1

    def drop(self, object_id: Any, /) -> None:
        with self._lock:
            left = self._counts.get(object_id, 1) - 1
            if left:
                self._counts[object_id] = left
                return
            self._counts.pop(object_id, None)
        if len(object_id) == 28:
            self._note("drop", (object_of(object_id),))
        elif len(object_id) == 16:  # the handle of an actor
            self._note("drop", (object_id + bytes(4),))

    # ---- Placement groups ------------------------------------------------------------------------------------------

    def create_placement_group(self, request: GroupRequest) -> bytes:
        made = super().create_placement_group(request)
        bundles, strategy, _, is_detached, selectors = request
        labels = [str(term) for each in selectors for term in parse_selector("bundle_label_selector", each)]
        self._note("group", made[:16], words_of_group(bundles, strategy, is_detached=is_detached, labels=labels))
        return made

    def remove_placement_group(self, group_id: bytes) -> None:
        self._note("ungroup", group_id[:16])
        super().remove_placement_group(group_id)


def replace_number(returns: Returns, number: int) -> Returns:
    """What a call returns, with another number of results."""
    return returns._replace(number=number)


def without_result(target: Any) -> Any:
    """A function whose result nobody wants."""

    def call(*args: Any, **kwargs: Any) -> None:
        target(*args, **kwargs)

    call.__dict__[NO_RESULT] = True
    return call


def _function(name: str) -> FunctionID:
    return function_id(name.encode())


def _plain(
    name: str, resources: Resources, placement: Resources, strategy: Strategy, *, num_returns: int
) -> FunctionTemplate:
    return FunctionTemplate(
        function_id=_function(name),
        name=name,
        resources=resources,
        placement=placement,
        num_returns=num_returns,
        max_retries=0,
        strategy=strategy,
    )


# ---- The file --------------------------------------------------------------------------------------------------------


class RunOnRay:
    """The record of a run, which goes to `path` at the end; `notes` are the driver's."""

    def __init__(self, path: Path, plan: Watched | None) -> None:
        self._path = path
        nodes = [node for node in ray.nodes() if node["Alive"]]
        own = ray.get_runtime_context().get_node_id()
        self._is_one_machine = {node["NodeManagerHostname"] for node in nodes} == {socket.gethostname()}
        nodes.sort(key=lambda node: (node["NodeID"] != own, node["NodeID"]))
        names = {node["NodeID"]: f"node-{index}" for index, node in enumerate(nodes)}
        collector = ray.remote(num_cpus=0, max_restarts=0)(Collector).remote()
        ray.get(collector.take.remote())  # it is there before the program begins
        driver = task_of(ray._private.worker.global_worker.current_task_id.binary())
        self.notes = Notes(RecordTo(collector, names, driver, plan), "driver-1")
        self._infos = terms.nodes_alive()
        self._began_ns = time.time_ns()

    def write(self) -> None:
        """Make the file; the program has ended."""
        ended_ns = time.time_ns()
        self.notes.close()
        notes, spent_ns, driver_spent_ns = self._all_notes()
        names = self.notes.record_to.names
        facts = {
            "mode": "ray",
            "driver": self.notes.record_to.driver.hex(),
            "nodes": {
                names[info.node]: {"resources": told(info.total).as_floats(), "object_store": info.store_bytes}
                for info in sorted(self._infos, key=lambda info: names[info.node])
            },
            "machine": f"a Ray cluster, Ray {ray.__version__}; the driver on {machine_words()}",
            "cores": os.cpu_count() if self._is_one_machine else None,
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "inline_bytes_max": _INLINE_BYTES_MAX,
        }
        record = make_record(notes, (), began_ns=self._began_ns, ended_ns=ended_ns, facts=facts)
        write_record(self._path, record)
        took_ns = max(1, ended_ns - self._began_ns)
        ran_ns = sum(row["end_ns"] - row["time_ns"] for row in record.of_kind("run"))
        of_workers = f" and {spent_ns / ran_ns:.1%} of the tasks' time" if ran_ns else ""
        of_program = f"{driver_spent_ns / took_ns:.1%} of the program's time"
        sys.stderr.write(f"dualray: {self._path}: recording took {of_program}{of_workers}.\n")

    def _all_notes(self) -> tuple[dict[str, bytes], int, int]:
        """The notes of all processes; how long noting took at the workers, and here."""
        own, driver_spent_ns = self.notes.take()
        collector = self.notes.record_to.collector
        parts: dict[str, list[bytes]] = {self.notes.address: []}
        spent_ns = 0
        until_s = time.monotonic() + _PATIENCE_S
        quiet_since_s = time.monotonic()
        said: dict[str, bytes] = {}
        while time.monotonic() < until_s:
            taken, its_spent_ns = ray.get(collector.take.remote(), timeout=_PATIENCE_S)
            spent_ns += its_spent_ns
            for address, data in taken.items():
                parts.setdefault(address, []).append(data)
            if taken:
                quiet_since_s = time.monotonic()
            said = {address: b"".join(datas) for address, datas in parts.items()}
            said[self.notes.address] += own
            if _all_have_ended(said) or time.monotonic() - quiet_since_s > _QUIET_S:
                break
            time.sleep(0.05)
        ray.kill(collector)
        return said, spent_ns, driver_spent_ns


def _all_have_ended(notes: Mapping[str, bytes]) -> bool:
    """Whether of each task that was submitted an end has been noted."""
    submitted: set[bytes] = set()
    ended: set[bytes] = set()
    for data in notes.values():
        unpacker = msgpack.Unpacker(raw=False, use_list=False, max_buffer_size=0, unicode_errors=SURROGATES)
        unpacker.feed(data)
        for batch in unpacker:
            submitted.update(note[4] for note in batch if note[0] == "submit")
            ended.update(note[1] for note in batch if note[0] == "run")
    return submitted <= ended


def in_worker(notes: Notes, *, waits_for_nodes: bool) -> RecordedVerbs:
    """The verbs of a worker whose tasks are recorded."""
    return RecordedVerbs(is_worker=True, waits_for_nodes=waits_for_nodes, notes=notes)
