"""Callbacks for Dask graphs: when a task is submitted, before and after it runs, and at the end of the graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Self

from dask.callbacks import Callback

from dualray import api
from dualray.object_ref import ObjectRef
from dualray.util.progress import tqdm

__all__ = ["ProgressBarCallback", "RayDaskCallback"]

_ACTOR = "_dask_on_ray_pb"
_POLL_S = 0.2


class Hooks(NamedTuple):
    """The functions of one callback; None for each that it has not."""

    ray_presubmit: Callable[..., Any] | None
    ray_postsubmit: Callable[..., Any] | None
    ray_pretask: Callable[..., Any] | None
    ray_posttask: Callable[..., Any] | None
    ray_postsubmit_all: Callable[..., Any] | None
    ray_finish: Callable[..., Any] | None


class RayDaskCallback(Callback):  # type: ignore[misc]  # dask ships no types
    """A callback for graphs that run on the cluster. It is active inside `with`, or from `register` to `unregister`.

    A subclass defines the methods that it needs, or the constructor takes them as keyword arguments without the
    leading underscore (`ray_presubmit=`). Methods of `dask.callbacks.Callback` work, too, in the process that computes
    the graph: Dask's `pretask` and `posttask` come when a task is submitted.

    - `_ray_presubmit(task, key, deps)`: before a task is submitted. A value other than None is the task's result, and
      the task does not run. `deps` has the reference, or the value, of each key that the task needs.
    - `_ray_postsubmit(task, key, deps, object_ref)`: after it was submitted.
    - `_ray_pretask(key, object_refs)`: in the worker, before the task.
    - `_ray_posttask(key, result, pre_state)`: in the worker, after it, with what `_ray_pretask` returned.
    - `_ray_postsubmit_all(object_refs, dsk)`: after all were submitted, with the references of the graph's results.
    - `_ray_finish(result)`: after the results have come.
    """

    ray_active: ClassVar[list[Hooks]] = []
    """The callbacks that are active in this process, in the order in which they became so."""

    def __init__(self, **hooks: Callable[..., Any] | None) -> None:
        for name in Hooks._fields:
            hook = hooks.pop(name, None)
            if hook is not None:
                setattr(self, f"_{name}", hook)
        super().__init__(**hooks)

    @property
    def hooks(self) -> Hooks:
        """Its functions."""
        return Hooks(*[getattr(self, f"_{name}", None) for name in Hooks._fields])

    def register(self) -> None:
        """Make it active."""
        RayDaskCallback.ray_active.append(self.hooks)
        super().register()

    def unregister(self) -> None:
        """End what `register` began."""
        RayDaskCallback.ray_active.remove(self.hooks)
        super().unregister()

    def __enter__(self) -> Self:
        RayDaskCallback.ray_active.append(self.hooks)
        super().__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        RayDaskCallback.ray_active.remove(self.hooks)


@contextmanager
def active_hooks(given: Any) -> Iterator[list[Hooks]]:
    """The callbacks of one computation: those that were given, or those that are active. A computation that begins
    inside of it does not call the active ones again.

    Raises:
        TypeError: what was given is no RayDaskCallback.
    """
    if given is not None:
        for each in given:
            if not isinstance(each, RayDaskCallback):
                raise TypeError(f"ray_callbacks takes instances of RayDaskCallback, not {each!r}")
        yield [each.hooks for each in given]
        return
    active, RayDaskCallback.ray_active = RayDaskCallback.ray_active, []
    try:
        yield active
    finally:
        RayDaskCallback.ray_active = active


class _Progress:
    """The actor that counts the tasks of one computation."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.submitted: dict[Any, float] = {}
        self.scheduled: dict[Any, float] = {}
        self.finished: dict[Any, float] = {}

    def submit(self, key: Any, now_s: float) -> None:
        self.submitted[key] = now_s

    def task_scheduled(self, key: Any, now_s: float) -> None:
        self.scheduled[key] = now_s

    def finish(self, key: Any, now_s: float) -> None:
        self.finished[key] = now_s

    def result(self) -> tuple[int, int]:
        """How many tasks were submitted, and how many have finished."""
        return len(self.submitted), len(self.finished)

    def report(self) -> dict[Any, Any]:
        """Of each task that has finished, the seconds it ran, and those from its submission until it ran."""
        rows: dict[Any, Any] = {
            key: {
                "execution_time": finished_s - self.scheduled[key],
                "scheduling_time": self.scheduled[key] - self.submitted[key],
            }
            for key, finished_s in self.finished.items()
        }
        rows["submission_order"] = list(self.submitted.items())
        return rows


class ProgressBarCallback(RayDaskCallback):
    """Counts the tasks of a computation in an actor, and shows a progress bar if `compute` gets
    `_ray_enable_progress_bar=True`.

    Attributes:
        pb: the actor. `pb.result.remote()` gives the numbers of tasks that were submitted and that have finished,
            `pb.report.remote()` the seconds of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pb = api.remote(_Progress).options(name=_ACTOR, get_if_exists=True, num_cpus=0).remote()
        api.get(self.pb.reset.remote())

    def _ray_postsubmit(self, task: Any, key: Any, deps: Any, object_ref: ObjectRef[Any]) -> None:
        self.pb.submit.remote(key, time.time())

    def _ray_pretask(self, key: Any, object_refs: Any) -> None:
        self.pb.task_scheduled.remote(key, time.time())

    def _ray_posttask(self, key: Any, result: Any, pre_state: Any) -> None:
        self.pb.finish.remote(key, time.time())

    def _ray_finish(self, result: Any) -> None:
        print("All tasks are completed.")  # noqa: T201 - as in Ray


def show_progress(refs: list[ObjectRef[Any]]) -> None:
    """Draw a bar of the tasks that ProgressBarCallback counts until these references are ready.

    Raises:
        ValueError: no ProgressBarCallback is active.
    """
    try:
        progress = api.get_actor(_ACTOR)
    except ValueError as error:
        words = "_ray_enable_progress_bar=True needs an active callback: compute inside `with ProgressBarCallback():`"
        raise ValueError(words) from error
    submitted, _ = api.get(progress.result.remote())
    bar = tqdm(desc="dask", total=submitted, unit="task")
    pending = refs
    while pending:
        _, pending = api.wait(pending, num_returns=len(pending), timeout=_POLL_S, fetch_local=False)
        _, finished = api.get(progress.result.remote())
        bar.update(finished - bar.n)
    bar.update(submitted - bar.n)  # the last workers may not have told yet
    bar.close()
