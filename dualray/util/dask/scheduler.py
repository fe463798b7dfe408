"""The scheduler that Dask calls with a graph: it submits each task of the graph as a task of the cluster.

Dask's own loop walks through the graph (`dask.local.get_async`): it knows the order that needs least memory, and
forgets a value after the last task that needs it. Here a task counts as done when it has been submitted, and its value
is a reference. So the whole graph is submitted at once, and the cluster's scheduler does the rest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final

import dask
from dask.core import flatten
from dask.local import get_async, get_sync
from dask.utils import key_split

from dualray import api
from dualray.object_ref import ObjectRef
from dualray.util.dask.callbacks import Hooks, active_hooks, show_progress

try:
    from dask._task_spec import DataNode, Dict, List, Set, Task, TaskRef, Tuple, convert_legacy_graph
    from dask.sizeof import sizeof
except ImportError as error:
    raise ImportError(f"Dask {dask.__version__} is too old; `pip install 'dask>=2025.1'`") from error

__all__ = ["dataframe_optimize", "disable_dask_on_ray", "enable_dask_on_ray", "ray_dask_get", "ray_dask_get_sync"]

_SHARED_BYTES: Final = 100 << 10
"""A value of the graph that is larger is put once, instead of being sent with each task that needs it."""
_OURS: Final = ("num_workers", "pool", "ray_callbacks", "ray_persist", "ray_remote_args", "_ray_enable_progress_bar")
_RESOURCES: Final = (
    "resources= is an annotation for Dask's own scheduler. The resources of a task go into its options: "
    'ray_remote_args={"resources": {...}}'
)


def enable_dask_on_ray(shuffle: str | None = "tasks", use_shuffle_optimization: bool | None = True) -> dask.config.set:
    """Have Dask compute its collections on the cluster. In a `with` statement it does so until the block ends.

    Args:
        shuffle: how Dask's dataframes shuffle: "tasks" (default), through the object store, or "disk", which needs a
            file system that all nodes share.
        use_shuffle_optimization: without effect; Ray optimizes the shuffles of Dask before 2025.

    Returns:
        The configuration that Dask had, to be set again at the end of a `with` statement.
    """
    return dask.config.set({"scheduler": ray_dask_get, "dataframe.shuffle.method": shuffle})


def dataframe_optimize(dsk: Any, keys: Any, **_kwargs: Any) -> Any:
    """Return the graph as it is. Ray optimizes the shuffles of Dask before 2025 here; later versions of Dask do so."""
    return dsk


def disable_dask_on_ray() -> dask.config.set:
    """Have Dask use its own scheduler again."""
    return dask.config.set({"scheduler": None, "dataframe.shuffle.method": None})


def ray_dask_get(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Compute keys of a graph on the cluster: the scheduler to give to `compute(scheduler=ray_dask_get)`.

    Args:
        dsk: the graph, or an expression of Dask's.
        keys: a key, or a nested list of keys.
        kwargs: `ray_remote_args`: options of all tasks, such as `{"num_cpus": 2}`. Those that
            `dask.annotate(ray_remote_args=...)` sets for a part of the graph come before them. `ray_callbacks`:
            instances of RayDaskCallback; default: the active ones. `ray_persist`: give references instead of values.
            `_ray_enable_progress_bar`: draw a bar; needs ProgressBarCallback. `num_workers` and `pool` have no effect:
            the cluster decides how many tasks run at once.

    Returns:
        The value of each key, in the form of `keys`.

    Raises:
        ValueError: `resources=` or `dask.annotate(resources=...)`, which belong into `ray_remote_args`.
        Exception: what a task raised; it is also a dualray.exceptions.TaskError.
    """
    annotated, active = _annotations(dsk), dask.get_annotations()
    if "resources" in kwargs or "resources" in annotated or "resources" in active:
        raise ValueError(_RESOURCES)
    options = {**(kwargs.get("ray_remote_args") or {}), **active.get("ray_remote_args", {})}
    with active_hooks(kwargs.get("ray_callbacks")) as hooks:
        graph = convert_legacy_graph(dict(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()))
        submitter = _Submitter(hooks, options, annotated.get("ray_remote_args", {}))
        graph = submitter.with_references(graph)
        others = {name: value for name, value in kwargs.items() if name not in _OURS}
        wanted = [keys] if not isinstance(keys, list) else keys
        found = get_async(submitter.submit, len(graph) + 1, graph, wanted, **others)
        flat = list(flatten(found))
        refs = [each for each in flat if isinstance(each, ObjectRef)]
        _call(hooks, "ray_postsubmit_all", refs, graph)
        if not kwargs.get("ray_persist"):
            if kwargs.get("_ray_enable_progress_bar"):
                show_progress(refs)
            values = dict(zip(refs, api.get(refs), strict=True))
            found = _replaced(found, values)
        result = found if isinstance(keys, list) else found[0]
        _call(hooks, "ray_finish", result)
    return result


def ray_dask_get_sync(dsk: Any, keys: Any, **kwargs: Any) -> Any:
    """Compute keys of a graph in this process, one task after another, to debug it. See `ray_dask_get`.

    References in the graph are resolved; callbacks of workers are not called.
    """
    graph = convert_legacy_graph(dict(dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()))
    graph = _Submitter([], {}, {}).with_references(graph)
    for key, node in graph.items():
        if isinstance(node, DataNode) and isinstance(node.value, ObjectRef):
            graph[key] = DataNode(key, api.get(node.value))
    others = {name: value for name, value in kwargs.items() if name not in _OURS}
    return get_sync(graph, keys, **others)


class _Submitter:
    """Submits the tasks of one graph."""

    def __init__(self, hooks: list[Hooks], options: dict[str, Any], annotated: Mapping[Any, dict[str, Any]]) -> None:
        self._hooks = hooks
        self._options = options
        self._annotated = annotated
        self._functions: dict[str, Any] = {}
        self._shared: dict[Any, ObjectRef[Any]] = {}
        self._found: dict[str, ObjectRef[Any]] = {}

    def with_references(self, graph: dict[Any, Any]) -> dict[Any, Any]:
        """The graph in which each reference is a node of its own, so that the tasks that need it get its value."""
        nodes = {key: self._node(node) for key, node in graph.items()}
        return nodes | {key: DataNode(key, ref) for key, ref in self._found.items()}

    def _node(self, node: Any) -> Any:
        """The node with a key for each reference among its arguments; the same object if it has none."""
        if isinstance(node, DataNode):
            if isinstance(node.value, ObjectRef):
                return node
            spec = self._argument(node.value)
            return node if spec is node.value else Task(node.key, _same, spec)
        if type(node) is not Task:
            return node
        if node.has_subgraph():
            return self._fused(node)
        args = [self._argument(each) for each in node.args]
        kwargs = {name: self._argument(each) for name, each in node.kwargs.items()}
        if _are_same(args, node.args) and _are_same(kwargs.values(), node.kwargs.values()):
            return node
        return Task(node.key, node.func, *args, **kwargs)

    def _fused(self, node: Any) -> Any:
        """A task that Dask has made of several: a reference inside of it becomes one of its arguments."""
        inner, output, inputs, *values = node.args
        tasks = {}
        for key, each in inner.items():
            is_reference = isinstance(each, DataNode) and isinstance(each.value, ObjectRef)
            tasks[key] = Task(key, _same, self._argument(each.value)) if is_reference else self._node(each)
        if _are_same(tasks.values(), inner.values()):
            return node
        inside = {dep for each in tasks.values() for dep in each.dependencies}
        new = sorted(key for key in self._found if key in inside and key not in inputs)
        return Task(node.key, node.func, tasks, output, (*inputs, *new), *values, *(TaskRef(key) for key in new))

    def _argument(self, value: Any) -> Any:
        """An argument with keys for references; the same object if it has none."""
        if isinstance(value, ObjectRef):
            key = f"reference-{value.hex()}"
            self._found[key] = value
            return TaskRef(key)
        if isinstance(value, DataNode):
            spec = self._argument(value.value)
            return value if spec is value.value else spec
        kind = type(value)
        if kind in (List, Tuple, Set, Dict):
            items = [self._argument(each) for each in value.args]
            if _are_same(items, value.args):
                return value
            return kind(*items) if kind in (Set, Dict) else kind(kind.klass(items))
        if kind in (list, tuple):
            items = [self._argument(each) for each in value]
            if _are_same(items, value):
                return value
            return List(items) if kind is list else Tuple(tuple(items))
        if kind in (dict, OrderedDict):
            entries = {key: self._argument(each) for key, each in value.items()}
            return value if _are_same(entries.values(), value.values()) else Dict(entries)
        return value

    def submit(self, _run: Callable[..., Any], batch: list[Any]) -> Future[Any]:
        """What Dask's loop calls instead of an executor: each task of the batch is submitted."""
        done: Future[Any] = Future()
        try:
            done.set_result([(key, (self._submit_one(key, *work), None), False) for key, work, *_ in batch])
        except BaseException as error:  # noqa: BLE001 - get_async raises it in the caller
            done.set_exception(error)
        return done

    def _submit_one(self, key: Any, task: Any, deps: dict[Any, Any]) -> Any:
        for hook in self._hooks:
            if hook.ray_presubmit is not None and (result := hook.ray_presubmit(task, key, deps)) is not None:
                return result
        needed = sorted(task.dependencies, key=str)
        values = [self._shared_value(each, deps[each]) for each in needed]
        workers_hooks = [
            (hook.ray_pretask, hook.ray_posttask) for hook in self._hooks if hook.ray_pretask or hook.ray_posttask
        ]
        refs = [each for each in values if isinstance(each, ObjectRef)] if workers_hooks else []
        ref = self._function(key).remote(task, key, needed, workers_hooks, refs, *values)
        _call(self._hooks, "ray_postsubmit", task, key, deps, ref)
        return ref

    def _shared_value(self, key: Any, value: Any) -> Any:
        if isinstance(value, ObjectRef) or sizeof(value) <= _SHARED_BYTES:
            return value
        if key not in self._shared:
            self._shared[key] = api.put(value)
        return self._shared[key]

    def _function(self, key: Any) -> Any:
        """The remote function for a task, with the name and the options of the task."""
        name = f"dask:{key_split(key)}"
        if key in self._annotated:
            return api.remote(_run_task).options(**{"name": name, **self._options, **self._annotated[key]})
        if name not in self._functions:
            self._functions[name] = api.remote(_run_task).options(**{"name": name, **self._options})
        return self._functions[name]


def _run_task(task: Any, key: Any, needed: list[Any], hooks: list[Any], refs: list[Any], *values: Any) -> Any:
    """Run one task of a graph, in a worker."""
    states = [pretask(key, refs) if pretask else None for pretask, _ in hooks]
    result = task(dict(zip(needed, values, strict=True)))
    for (_, posttask), state in zip(hooks, states, strict=True):
        if posttask:
            posttask(key, result, state)
    return result


def _annotations(dsk: Any) -> dict[str, dict[Any, Any]]:
    """What `dask.annotate` says of the graph's keys, by annotation; those that are active now hold for all keys."""
    found: dict[str, dict[Any, Any]] = {}
    if hasattr(dsk, "__dask_annotations__"):
        found = {name: dict(by_key) for name, by_key in dsk.__dask_annotations__().items()}
    else:
        for layer in getattr(dsk, "layers", {}).values():
            for name, value in (getattr(layer, "annotations", None) or {}).items():
                found.setdefault(name, {}).update({key: value(key) if callable(value) else value for key in layer})
    return found


def _call(hooks: list[Hooks], name: str, *args: Any) -> None:
    for each in hooks:
        hook = getattr(each, name)
        if hook is not None:
            hook(*args)


def _replaced(found: Any, values: dict[ObjectRef[Any], Any]) -> Any:
    """Nested results with the values of their references."""
    if isinstance(found, list | tuple):
        return type(found)([_replaced(each, values) for each in found])
    return values[found] if isinstance(found, ObjectRef) else found


def _are_same(new: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(one is other for one, other in zip(new, old, strict=True))


def _same(value: Any) -> Any:
    return value
