"""Running one task: from its pickled arguments, through the user's code, to its sealed results.

Runs where user code runs: on a worker's main thread, or in a fiber. The executor machine has brought the arguments into
reach; what the function returns is stored, small values as payloads of this process, and reported with `TaskRan`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import GeneratorType
from typing import Any

from dualray.exceptions import ControlPlaneError, TaskCancelledError
from dualray.shared.core.arguments import unpack_arguments
from dualray.shared.core.execution import Execution, new_execution
from dualray.shared.core.failures import Raising, as_cancellation, as_payload, is_of_task, readable
from dualray.shared.core.host import Host
from dualray.shared.core.item_maker import AsyncItems, ItemMaker, store_result
from dualray.shared.core.layout import PLAIN_TYPES, plain_bytes
from dualray.shared.core.pickled_names import keep_name
from dualray.shared.core.serialization import serialize
from dualray.shared.core.tasks_in_hand import CoreTasks
from dualray.shared.handles import METHOD_OPTIONS, SHUTDOWN, TERMINATE, ActorExit, method_of
from dualray.shared.machines.owner.task_records import cancelled
from dualray.shared.model.commands import RunTask
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import ActorExitAsked, Result, TaskPushed, TaskRan
from dualray.shared.model.ids import FunctionID, return_object_id, short
from dualray.shared.model.specs import FunctionTemplate, Ref, Streaming, TaskSpec
from dualray.shared.proof.trace import TraceKind

_NONE = serialize(None).to_bytes()


@dataclass(slots=True)
class Export:
    """What the function table holds, pickled: a function or class, and what sim mode needs to know of it."""

    target: Any
    duration: Any = None
    collect: Callable[[Sequence[Ref]], Any] | None = None
    """Makes the result of a dynamic generator out of its items."""
    retried: tuple[type[BaseException], ...] | None = None
    """The exceptions for which a call is tried again; None: all, if any."""
    sim_unsafe: str | None = None
    """What becomes of calls that lead out of a simulation: "allow" or "refuse"; None: as the simulation says."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Said here, it is the same where the core is compiled: a function's id is a digest of this.
        said = (self.target, self.duration, self.collect, self.retried)
        return Export, said if self.sim_unsafe is None else (*said, self.sim_unsafe)


keep_name("dualray.shared.task_runner", Export)


IS_SUDDEN = "is_sudden"
"""An attribute of a SystemExit that stands for `os._exit`, which ends a process without a word."""


def _ends_actor(spec: TaskSpec, escaped: BaseException) -> bool:
    """Whether what has left user code ends its actor for good: `exit_actor()`, or `sys.exit(0)` as in Ray. Any other
    exit is a death of the worker, after which an actor may restart."""
    if isinstance(escaped, ActorExit):
        return True
    is_of_actor = spec.actor_id is not None or spec.creates is not None
    assert isinstance(escaped, SystemExit)
    return is_of_actor and escaped.code in (None, 0) and not getattr(escaped, IS_SUDDEN, False)


class TaskRunner:
    """See the module. Keeps the functions that this process has loaded, and its actor's instance."""

    def __init__(self, core: CoreTasks) -> None:
        self._core = core
        self._host: Host = core.host
        self.loaded: dict[FunctionID, Export] = {}
        self.instance: Any = None
        self.reports_small = True
        """Whether a small result may be reported without a TaskRan."""
        self._method_template: FunctionTemplate | None = None
        self._method_name = ""
        """Of the call that began last."""
        self._items: ItemMaker | None = None

    def serve(self, host: Host) -> None:
        """Run tasks for another process from now on."""
        self._host = host

    def _item_maker(self) -> ItemMaker:
        if self._items is None:
            self._items = ItemMaker(self._core)
        return self._items

    def execute(self, task: RunTask | TaskPushed) -> None:
        """Run one task from its pickled arguments to its sealed results. Called where user code runs."""
        start_ns = self._enter(task)
        error: ErrorInfo | None = None
        results: list[Result] = []
        small_bytes = 0
        returned: Any = None  # kept until TaskRan: from then on the machine holds the references among them
        try:
            returned = self._call(task)
            if task.spec.actor_id is not None and self._core.is_cancelled():
                returned, error = None, cancelled(task.spec)  # the method went on, and whoever called has given it up
            elif task.spec.template.has_one_result and self.reports_small:
                small_bytes = self._store_small(task, returned, results)
            else:
                returned = self._returned(task, returned)
                results = self._store_results(task, returned)
        except KeyboardInterrupt as interrupt:
            self._core.is_in_user_code = False  # it may have been raised where this is said
            if self._core.was_interrupted(task):
                error = self._interrupted(task, interrupt)
            elif is_of_task(interrupt, self._host):
                error = self._failed(task, interrupt)
            else:
                raise
            results, small_bytes = [], 0
        except Exception as exception:  # noqa: BLE001 - it is the user's, and travels to whoever asked
            results, small_bytes = [], 0
            exception = readable(exception)
            if isinstance(exception, TaskCancelledError) and self._core.was_interrupted(task):
                error = self._interrupted(task, exception)  # it waited for its own task, and both were cancelled
            else:
                error = self._failed(task, exception)
        except (ActorExit, SystemExit) as escaped:
            self._clean_up(escaped)
            if not _ends_actor(task.spec, escaped):
                raise
            self._core.current_task = None
            self._core.dispatch(ActorExitAsked(task_id=task.spec.task_id))
            return
        except BaseException as exception:
            exception = readable(exception)
            if not is_of_task(exception, self._host):
                raise
            results, small_bytes = [], 0
            error = self._failed(task, exception)
        if small_bytes:
            if not self._core.ends_later(task, small_bytes, start_ns):
                self.end_small(task, small_bytes, start_ns)
        else:
            self._core.current_task = None
            self._report(task, results, error, start_ns, returned)

    def end_small(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> None:
        """A task ends with one small result, which is stored."""
        self._core.current_task = None
        if self._core.is_traced:
            self._trace_end(task, None)
        self._core.report_small(task, size_bytes, self._note_end(task, start_ns))

    def end_cancelled(self, task: RunTask | TaskPushed, start_ns: int) -> None:
        """A task was cancelled when its code had returned, and its time was not over."""
        core = self._core
        core.current_task = None
        core.payloads.pop(return_object_id(task.spec.task_id, 0), None)
        self._report(task, [], cancelled(task.spec), start_ns, None)

    def construct_on_loop(self, task: RunTask) -> None:
        """Have an actor with coroutines constructed on the thread on which its methods will run."""
        self._enter(task)
        self._core.current_task = None
        self._host.start_on_loop(task)

    async def execute_async(self, task: RunTask) -> None:
        """The same for the constructor, which has been entered, and the methods of an actor with coroutines."""
        creates = task.spec.creates
        start_ns = self._enter(task) if creates is None else self._core.now_ns()
        error: ErrorInfo | None = None
        results: list[Result] = []
        returned: list[Any] = []
        try:
            function, args, kwargs = self._prepare(task)
            if task.spec.template.streaming:
                function = AsyncItems(self._item_maker(), task, function, self._collector(task))
            result = await self._host.call_async(function, args, kwargs, self._core.execution)
            del args, kwargs
            if creates is not None:
                self.instance = result
            returned = self._returned(task, result)
            del result
            results = self._store_results(task, returned)
        except Exception as exception:  # noqa: BLE001 - as above
            results = []
            exception = readable(exception)
            if isinstance(exception, TaskCancelledError) and self._core.was_call_cancelled(task):
                error = self._interrupted(task, exception, is_coroutine=True)
            else:
                error = self._failed(task, exception)
        except (ActorExit, SystemExit) as escaped:
            self._clean_up(escaped)
            if not _ends_actor(task.spec, escaped):
                raise
            self._core.dispatch(ActorExitAsked(task_id=task.spec.task_id))
            return
        except BaseException as exception:
            exception = readable(exception)
            if not is_of_task(exception, self._host, is_coroutine=True):
                raise
            results = []
            error = self._failed(task, exception)
        self._report(task, results, error, start_ns, returned)

    def _clean_up(self, escaped: BaseException) -> None:
        """User code ends its process, and what it has raised has no more use for its frames, which keep the actor."""
        if getattr(escaped, IS_SUDDEN, False):
            return
        escaped.__traceback__ = escaped.__context__ = None
        self.shut_down()

    def shut_down(self) -> None:
        """An actor ends that is not killed: its `__ray_shutdown__` runs, then functions of `atexit`, then `__del__`."""
        shut_down = getattr(self.instance, SHUTDOWN, None)
        try:
            if shut_down is not None:
                shut_down()
        except Exception as error:  # noqa: BLE001 - it is the user's, and the actor ends all the same
            self._host.tell(f"dualray: {SHUTDOWN} of {type(self.instance).__name__} raised {error!r}\n")
        finally:
            self._host.run_at_exit()
            self.instance = shut_down = None

    def _enter(self, task: RunTask | TaskPushed) -> int:
        """What the caller does from now on belongs to the task; when that is."""
        start_ns = self._core.now_ns()
        spec = task.spec
        core = self._core
        execution = core.execution
        if spec.actor_id is None and spec.creates is None:
            core.task_began_ns = start_ns
            core.enter(new_execution(spec.task_id, task.attempt, spec.template, task.device_ids, None))
        elif spec.actor_id is None:
            core.enter(
                Execution(
                    task_id=spec.task_id,
                    attempt=task.attempt,
                    name=spec.template.name,
                    device_ids=task.device_ids,
                    actor_id=spec.creates.actor_id if spec.creates else None,
                    resources=spec.template,
                    constructor=spec if spec.creates else None,
                    actor_life=task.attempt,
                )
            )
            if spec.creates is not None and spec.creates.is_concurrent:
                core.become_concurrent(spec.creates)
        else:  # what its constructor was given is the actor's for life
            core.enter(
                Execution(
                    task_id=spec.task_id,
                    attempt=task.attempt,
                    name=spec.template.name,
                    device_ids=execution.device_ids,
                    actor_id=spec.actor_id,
                    resources=execution.resources,
                    constructor=execution.constructor,
                    actor_life=execution.actor_life,
                    sim_unsafe=execution.sim_unsafe,
                    method=spec.template.method,
                )
            )
        if self._core.is_traced:
            core.trace(TraceKind.TASK_STARTED, spec.task_id, "", spec.template.name, task.attempt)
        return start_ns

    def _failed(self, task: RunTask | TaskPushed, exception: BaseException) -> ErrorInfo:
        """What user code raised is the payload of its first result. That it could not even be loaded is no error of its
        own: the task may be tried again, like one whose worker is gone."""
        if isinstance(exception, ControlPlaneError) and task.spec.template.function_id not in self.loaded:
            words = f"{task.spec.template.name} (task {short(task.spec.task_id)}) could not be loaded: {exception}."
            return ErrorInfo(kind=ErrorKind.WORKER_CRASHED, message=words)
        template, task_id = task.spec.template, task.spec.task_id
        is_interrupt = isinstance(exception, KeyboardInterrupt)
        words = f"{template.name} raised KeyboardInterrupt, which cancels a task."
        raised = as_cancellation(words, task_id, exception) if is_interrupt else exception
        payload, error = as_payload(template.name, raised, self.instance)
        self._core.payloads[return_object_id(task_id, 0)] = payload
        if is_interrupt:
            return replace(error, is_final=True)
        if template.retry_exceptions and template.function_id in self.loaded:
            retried = self.loaded[template.function_id].retried
            if retried is not None and not isinstance(exception, retried):
                return replace(error, is_final=True)
        return error

    def _interrupted(
        self, task: RunTask | TaskPushed, exception: BaseException, *, is_coroutine: bool = False
    ) -> ErrorInfo:
        """Return the error of a cancelled task that was interrupted. If the interrupt hit the task's own code, the
        payload of its first result has the traceback. A cancelled coroutine leaves no traceback."""
        error, task_id = cancelled(task.spec), task.spec.task_id
        raised = as_cancellation(error.message, task_id, exception)
        if raised.__traceback__ is None and not is_coroutine:
            return error  # before its code began, or after it had returned
        payload, _ = as_payload(task.spec.template.name, raised, self.instance)
        self._core.payloads[return_object_id(task_id, 0)] = payload
        return replace(error, is_interrupt=True)

    def _returned(self, task: RunTask | TaskPushed, result: Any) -> list[Any]:
        """What a call has returned, as the values of its results."""
        count = task.spec.template.num_returns if task.spec.creates is None else 0
        if count and isinstance(result, GeneratorType) and not task.spec.template.streaming:
            return self._yielded(task, result, count)
        if count == 1:
            return [result]
        return _split(result, count, task.spec.template.name)

    def _yielded(self, task: RunTask | TaskPushed, generator: Generator[Any, None, Any], count: int) -> list[Any]:
        """The first `count` values of a generator. What it has yielded before it raises, or ends too early, stays good:
        the results behind that raise when they are read."""
        name, core, values = task.spec.template.name, self._core, list[Any]()
        try:
            core.is_in_user_code = task.spec.actor_id is None
            try:
                for value in islice(generator, count):  # compiled, extend() would lose those before an error
                    values.append(value)
            finally:
                core.is_in_user_code = False
                generator.close()
            if len(values) < count:
                raise ValueError(f"{name} has num_returns={count}, but yielded {len(values)} values")
        except Exception as exception:
            if not values or self._is_tried_again(task, exception):
                raise
            values += [Raising(as_payload(name, exception, self.instance)[0])] * (count - len(values))
        return values

    def _is_tried_again(self, task: RunTask | TaskPushed, exception: Exception) -> bool:
        """Whether a call runs again because of what it has raised."""
        template = task.spec.template
        if not template.retry_exceptions or 0 <= template.max_retries <= task.attempt:
            return False
        export = self.loaded.get(template.function_id)
        return export is None or export.retried is None or isinstance(exception, export.retried)

    def _report(
        self, task: RunTask | TaskPushed, results: list[Result], error: ErrorInfo | None, start_ns: int, returned: Any
    ) -> None:
        """Report the end of a task. `returned` is what it has returned: who is given it keeps it until this is over,
        also where this is compiled, which lets go of a variable with its last use."""
        spec = task.spec
        if self._core.is_traced:
            self._trace_end(task, error)
        ran = TaskRan(task_id=spec.task_id, attempt=task.attempt, results=tuple(results), error=error)
        duration_ns = self._note_end(task, start_ns)
        if spec.template.streaming:  # its end goes behind its items, and waits for no other
            self._core.report_ran(ran, duration_ns, is_alone=True)
        else:
            self._core.report_ran(ran, duration_ns)

    def _note_end(self, task: RunTask | TaskPushed, start_ns: int) -> int:
        """Keep when a task ran; for how long, in ns."""
        core = self._core
        end_ns = core.now_ns()
        if core.kept_times is not None:
            spec = task.spec
            core.kept_times.extend((spec.task_id, task.attempt, spec.template.name, start_ns, end_ns))
        return end_ns - start_ns

    def _trace_end(self, task: RunTask | TaskPushed, error: ErrorInfo | None) -> None:
        spec = task.spec
        other = error.kind if error else ""
        core = self._core
        core.trace(TraceKind.TASK_ENDED, spec.task_id, other, spec.template.name, task.attempt)

    def _call(self, task: RunTask | TaskPushed) -> Any:
        function, args, kwargs = self._prepare(task)
        spec, core = task.spec, self._core
        if spec.template.streaming:
            return self._item_maker().make_all(task, function, args, kwargs, self._collector(task))
        if spec.creates is not None:
            self.instance = self._core.call(function, args, kwargs, core.execution)
            return None
        if spec.actor_id is not None:
            return self._core.call(function, args, kwargs, core.execution)
        core.is_in_user_code = True
        try:
            if core.is_interrupt_due and core.takes_interrupt():
                raise KeyboardInterrupt
            return self._core.call(function, args, kwargs, core.execution)
        finally:
            core.is_in_user_code = False

    def _prepare(self, task: RunTask | TaskPushed) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
        """What is to be called, and with what."""
        spec = task.spec
        if spec.template.runtime_env:
            self._core.take_environment(spec.template.runtime_env)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if spec.args_bytes:
            values = self._core.read_all([ref.object_id for ref in spec.deps]) if spec.deps else ()
            args, kwargs = unpack_arguments(self._core.payloads[spec.task_id], values)
            del values
        export = self.load(spec.template.function_id)
        if spec.actor_id is None:
            execution = self._core.execution
            execution.duration, execution.sim_unsafe = export.duration, export.sim_unsafe
            return export.target, args, kwargs
        if spec.template is not self._method_template:
            template = self._method_template = spec.template
            self._method_name = template.method or template.name.rpartition(".")[2]
        name = self._method_name
        if name == TERMINATE:
            raise ActorExit
        method = method_of(self.instance, name)
        self._core.execution.duration = getattr(getattr(method, METHOD_OPTIONS, None), "duration", None)
        return method, args, kwargs

    def _collector(self, task: RunTask | TaskPushed) -> Callable[[Sequence[Ref]], Any] | None:
        template = task.spec.template
        return self.load(template.function_id).collect if template.streaming is Streaming.DYNAMIC else None

    def load(self, function: FunctionID) -> Export:
        """What the function table has of this id, loaded once."""
        export = self.loaded.get(function)
        if export is None:
            export = self.loaded[function] = self._host.load_function(function)
        return export

    def _store_small(self, task: RunTask | TaskPushed, value: Any, results: list[Result]) -> int:
        """Keep the one result of a call, if it is small and refers to nothing: how many bytes it has. Else 0, and what
        is to be reported of it is added to `results`."""
        core, spec = self._core, task.spec
        object_id = return_object_id(spec.task_id, 0)
        if value is None:
            core.payloads[object_id] = _NONE
            return len(_NONE)
        if type(value) in PLAIN_TYPES:
            payload = plain_bytes(value)
            if len(payload) <= core.config.inline_bytes_max:
                core.payloads[object_id] = payload
                return len(payload)
        if isinstance(value, GeneratorType):
            value = self._yielded(task, value, 1)[0]
        serialized = serialize(value, "return value {} of {}", 0, spec.template.name)
        size_bytes, nested = serialized.size_bytes, serialized.refs
        inline = size_bytes <= core.config.inline_bytes_max
        if not inline:
            store_result(core, task, object_id, serialized)
        else:
            core.payloads[object_id] = serialized.to_bytes()
            if not nested:
                return size_bytes
        results.append(Result(object_id=object_id, size_bytes=size_bytes, inline=inline, nested=nested))
        return 0

    def _store_results(self, task: RunTask | TaskPushed, values: Sequence[Any]) -> list[Result]:
        spec = task.spec
        results = []
        payloads: dict[bytes, bytes] = {}  # kept when all values could be stored
        for index, value in enumerate(values):
            object_id = return_object_id(spec.task_id, index)
            if value is None:
                payloads[object_id] = _NONE
                results.append(Result(object_id=object_id, size_bytes=len(_NONE), inline=True))
                continue
            serialized = serialize(value, "return value {} of {}", index, spec.template.name)
            inline = serialized.size_bytes <= self._core.config.inline_bytes_max
            if inline:
                payloads[object_id] = serialized.to_bytes()
            else:
                store_result(self._core, task, object_id, serialized)
            results.append(
                Result(object_id=object_id, size_bytes=serialized.size_bytes, inline=inline, nested=serialized.refs)
            )
        self._core.payloads.update(payloads)
        return results


def _split(returned: Any, count: int, name: str) -> list[Any]:
    if count == 0:
        return []
    try:
        values = list(returned)
    except TypeError:
        raise TypeError(
            f"{name} has num_returns={count}, but returned one {type(returned).__name__}, which cannot be split into "
            f"{count} values"
        ) from None
    if len(values) != count:
        raise ValueError(f"{name} has num_returns={count}, but returned {len(values)} values")
    return values
