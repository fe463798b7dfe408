"""A process that runs user code: the driver, and every worker. The `Host` of its core worker.

User code runs on threads of its own; in a worker the main thread runs one task at a time. A thread that waits runs the
process's loop meanwhile (see loop.py): it reads sockets and fires timers. While none waits, the thread `dualray-io`
does so. Whoever has an event for the machine takes the lock, hands it over and carries out the commands; sending never
waits.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from numpy.random import MT19937, RandomState
from numpy.random import set_state as set_numpy_state

from dualray import runtime_env
from dualray.real.limits import is_exhaustion, is_out_of_threads, limit_in_words, start_thread
from dualray.real.net.loop import Loop
from dualray.real.net.messages import Post, decode_messages
from dualray.real.net.transport import Transport
from dualray.real.observe.counters import COUNTS, COUNTS_ASKED, of_connections, of_owner
from dualray.real.processes.interpreter import InterpreterSettings
from dualray.real.processes.interrupts import Interrupts
from dualray.real.processes.library_threads import LibraryThreads
from dualray.real.processes.process_tables import ProcessTables
from dualray.real.processes.recorder import Recorder
from dualray.real.processes.runner import Timers
from dualray.real.processes.user_signals import UserSignals
from dualray.real.quiet_lock import QuietLock
from dualray.real.session.session import LOOPBACK, Session
from dualray.real.store.object_store import SharedMemoryStore
from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.execution import Execution
from dualray.shared.core.task_times import new_times
from dualray.shared.model.codec import pack
from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import Event, PeerLost, TaskPushed, TimerFired
from dualray.shared.model.ids import HEAD, Address, NodeID, TaskID
from dualray.shared.model.specs import Ref
from dualray.shared.proof.decision_log import MachineSpec
from dualray.shared.seeding import stream_seed, task_seed
from dualray.user_metrics import METRICS

if TYPE_CHECKING:
    import asyncio

    from dualray.real.processes.actor_calls import CallLoop, CallThreads
    from dualray.real.processes.run_recorder import NoteFile

_EVENTS_FIRST_BYTE = 0x90
"""Of headers that hold events, a msgpack array, at least."""
_SPIN_NS = 200_000
"""How long a waiting thread looks for news before it sleeps, where news comes so soon: longer than a caller takes to
send the next task when it has the result of the last. That saves waking it up, which takes 50 to 100 us."""


def _spin_ns() -> int:
    return _SPIN_NS if len(os.sched_getaffinity(0)) > 1 else 0


class Signal:
    """What one thread waits for, running the loop meanwhile if nobody else does."""

    __slots__ = ("_event", "_process", "is_set")

    def __init__(self, process: UserProcess) -> None:
        self.is_set = False
        self._process = process
        self._event: threading.Event | None = None

    def wait(self) -> None:
        """Wait until it is set."""
        while not self.is_set:
            if self._process.post.waiting:
                self._process.flush()
            if not self._process.loop.pump(self):
                self._process.interrupts.deliver()
                if self._process.terminations is not None:
                    self._process.terminations.deliver()
                event = self._event = threading.Event()
                self._process.loop.wait_elsewhere(self, event)

    def set(self) -> None:
        """Let the thread go on."""
        self.is_set = True
        if self._event is not None:
            self._event.set()


def _end_forked_child() -> NoReturn:
    """A child that a task has forked comes out of the task's function: the task is its parent's, and so is the rest."""
    error, code = sys.exception(), 0
    try:
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(code & 0xFF)


def _epoch_ns() -> int:
    """The time of day at which this machine's clock began."""
    return time.time_ns() - time.monotonic_ns()


def _unknown_here() -> None:
    """The times of all tasks: each worker keeps its own."""


def _raise(error: BaseException) -> None:
    raise error


class Terminated(SystemExit):
    """The process was sent SIGTERM. As in Ray, user code leaves its blocks as at `sys.exit()`."""


class UserProcess:
    """See the module.

    Args:
        on_tasks: called when there are tasks to run; must not block.
        on_lost: called with the address of a peer whose connection closed.
        on_error: called with an exception that was met on the loop's thread.
        on_raw: called with (peer, header) of a message between runners; None: there are none for this process.
        tell: called with words for whoever runs the program.
    """

    _is_ending = False
    terminations: Interrupts | None = None
    """Of a worker: what SIGTERM does."""
    epoch_ns = staticmethod(_epoch_ns)
    new_times = staticmethod(new_times)
    all_task_times = staticmethod(_unknown_here)

    def __init__(
        self,
        *,
        session: Session,
        address: Address,
        node: NodeID,
        root: TaskID,
        is_driver: bool,
        on_tasks: Callable[[], None],
        on_lost: Callable[[str], None],
        on_error: Callable[[Exception], None],
        tell: Callable[[str], object],
        on_raw: Callable[[str, memoryview], object] | None = None,
    ) -> None:
        self._tell = tell
        self.on_escape: Callable[[BaseException], object] = _raise
        """Called with what escapes from a method that runs on a thread of its own, or on the event loop."""
        self._call_threads: CallThreads | None = None
        self._call_loops: dict[str, CallLoop] = {}
        """By concurrency group."""
        self._on_raw = on_raw
        self._is_forked = False
        self._library_threads = LibraryThreads()
        self.session = session
        self.address = address
        self._on_lost = on_lost
        self.now_ns: Callable[[], int] = time.monotonic_ns
        self.lock = QuietLock()
        self.store = SharedMemoryStore(session.store_directory)
        self.tasks_came = on_tasks
        spec = MachineSpec(kind="owner", address=address, node=node, config=session.config, is_driver=is_driver)
        self.recorder = Recorder(session.record_directory, spec, seed=session.seed)
        self.is_traced = self.is_logged = self.recorder.is_recording
        self.log = self.recorder.log
        self.trace = self.recorder.trace
        self.notes: NoteFile | None = None
        make_core: Callable[..., CoreWorker] = CoreWorker
        if session.has_notes:
            from dualray.real.processes.run_recorder import NoteFile  # noqa: PLC0415 - only a process that is recorded needs it

            self.notes = NoteFile(self)
            make_core = self.notes.make_core
        self.core = make_core(
            address=address, node=node, config=session.config, host=self, root=root, is_driver=is_driver
        )
        self.loop = Loop(on_error, spin_ns=_spin_ns(), on_turn=self._on_turn, is_shared=True)
        self.yield_point: Callable[[], None] = self.loop.poll_once
        self.interrupts: Interrupts = Interrupts(self.is_busy, self.loop.leave)
        self._user_signals = UserSignals(self.is_busy, self.loop.leave, is_driver=is_driver)
        self._timers = Timers(self.loop)
        self._settings: InterpreterSettings | None = None
        self._tables = tables = ProcessTables(session, self.lock, self.loop)
        self.write_record, self.write_records = tables.write_record, tables.write_records
        self.put_function, self.load_function = tables.put_function, tables.load_function
        self.put_functions_again, self.read_table = tables.put_again, tables.read_table
        self.read_functions, self.settle_records = tables.read_functions, tables.settle_records
        self.transport = self._new_transport(session, has_raw=on_raw is not None)
        self.post = Post(self.transport.send)
        self.end_step = self.post.flush
        self._thread = threading.Thread(target=self.loop.run, name="dualray-io", daemon=True)

    def _new_transport(self, session: Session, *, has_raw: bool) -> Transport:
        return Transport(
            self.loop,
            address=self.address,
            socket_dir=session.sockets,
            secret=session.secret,
            # Only who can get other messages than events looks at what each is.
            on_message=self._on_message_or_raw if has_raw or session.metrics_port is not None else self._on_message,
            on_peer_lost=self._on_peer_lost,
            gateway_for=session.gateway_for,
        )

    def start(self) -> None:
        """Begin to read sockets."""
        self._settings = InterpreterSettings()
        self.interrupts.install()
        if self.terminations is not None:
            self.terminations.install()
        self._user_signals.install()
        start_thread(self._thread)

    def close(self) -> None:
        """Stop reading and writing; whoever waits is woken and raises."""
        self._user_signals.restore()
        self.interrupts.restore()
        self.core.close()
        self.core.abandon_waits()
        if self._thread.is_alive():
            self.transport.close()
            self.loop.stop()
            self._thread.join(5.0)
        self._tables.close()
        self.recorder.close()
        if self.notes is not None:
            self.notes.write()
        self.loop.close()
        if self._settings is not None:
            self._settings.restore()

    def note_fork(self) -> None:
        """This is a child that user code has forked: sockets and tasks are its parent's."""
        self._is_forked = True

    def is_busy(self) -> bool:
        """Whether the calling thread is in the middle of a step."""
        return self.lock.is_held() or self.loop.is_busy()

    def _on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        self.core.on_messages(decode_messages(header, buffers))

    def _on_message_or_raw(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        if header[0] == COUNTS_ASKED:
            self._say_counts(peer)
        elif header[0] < _EVENTS_FIRST_BYTE:
            if self._on_raw is not None:
                self._on_raw(peer, header)
        else:
            self.core.on_messages(decode_messages(header, buffers))

    def _say_counts(self, peer: str) -> None:
        """The node manager is asked for its metrics."""
        with self.lock:
            self._tables.write_rows()
            failed = self._tables.rows_written.get("errors", 0)
            finished = self._tables.rows_written.get("tasks", 0) - failed
            counts = of_owner(self.core.machine, tasks_finished=finished, tasks_failed=failed)
            counts |= of_connections(self.transport.counters)
        self.transport.send(peer, bytes((COUNTS,)) + pack([counts, METRICS.snapshot()]))

    def _on_turn(self) -> None:
        self.core.take_in_finalizers()
        if self.post.waiting:
            self.flush()

    def _on_peer_lost(self, peer: str) -> None:
        with self.lock:
            self.post.forget(Address(peer))
        why = self.transport.why_lost(peer)
        self._on_lost(peer)
        if isinstance(why, OSError) and is_exhaustion(why):
            self.transport.forget(peer)  # there may be room later
            self.core.dispatch(PeerLost(address=Address(peer), limit=why.strerror or str(why)))
            return
        if peer != HEAD and self.session.gateway_for(peer) is not None:  # another machine's, which may live
            self.transport.forget(peer)
            self.core.dispatch(PeerLost(address=Address(peer)))

    def flush(self) -> None:
        """Send what waits for company."""
        if self.post.waiting:
            with self.lock:
                self.post.flush_all()

    # ---- Host ------------------------------------------------------------------------------------------------

    def send(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], *, urgent: bool = True
    ) -> None:
        self.post.add(to, message, payloads, urgent=urgent)
        if not urgent:
            self.loop.wake_if_asleep()

    def arm_timer(self, timer: str, delay_ns: int) -> None:
        self._timers.arm(timer, delay_ns, lambda name: self.core.dispatch(TimerFired(timer=name)))

    def cancel_timer(self, timer: str) -> None:
        self._timers.cancel(timer)

    def on_empty_poll(self) -> None:
        """Time passes by itself."""

    def new_signal(self) -> Signal:
        return Signal(self)

    def interrupt(self) -> None:
        self.interrupts.send()

    def spawn(self, function: Callable[[], object]) -> None:
        start_thread(threading.Thread(target=function, name="dualray-beside", daemon=True))

    def collect_garbage(self) -> None:
        try:
            self.spawn(gc.collect)
        except RuntimeError as error:
            if not is_out_of_threads(error):
                raise
            logging.getLogger("dualray").info("no thread can be started to collect garbage: %s", limit_in_words(error))

    def place_of(self, node: NodeID) -> tuple[str, str]:
        """This machine's: what a node of another offers says its address (`VerbsOverCore.nodes`)."""
        place = self.session.cluster
        here = LOOPBACK if place is None else place.endpoint.rpartition(":")[0].strip("[]")
        return here, socket.gethostname()

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """Call user code, with its random streams seeded."""
        self._prepare(task)
        try:
            return function(*args, **kwargs)
        finally:
            if self._is_forked:
                _end_forked_child()

    iterate = call

    def _prepare(self, task: Execution) -> None:
        """Let libraries use the threads that the task has CPUs for, and seed its random streams."""
        self._library_threads.take(task.resources)
        is_method = task.constructor is not None and task.constructor.task_id != task.task_id
        if self.session.seed is not None and not is_method:  # a method draws on after its constructor
            seed = task_seed(self.session.seed, task.task_id, task.attempt)
            random.seed(stream_seed(seed, b"random"))
            generator = RandomState(MT19937(stream_seed(seed, b"numpy")))
            set_numpy_state(generator.get_state())  # noqa: NPY002 - it is the user's global generator that is seeded

    def take_environment(self, text: str) -> None:
        runtime_env.apply(text)
        runtime_env.run_setup_hook(text)

    async def until_ready(self, ref: Ref) -> None:
        from dualray.aio import until_ready  # noqa: PLC0415 - as below

        await until_ready(ref, self.core)

    async def call_async(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        from dualray.aio import call_and_await  # noqa: PLC0415 - it imports asyncio, which most processes do without

        if isinstance(function, type):
            self._prepare(task)
        return await call_and_await(function, args, kwargs)

    def start_beside(self, task: RunTask, threads_max: int) -> None:
        if self._is_ending:
            return
        if self._call_threads is None:
            from dualray.real.processes.actor_calls import CallThreads  # noqa: PLC0415 - few actors need it

            self._call_threads = CallThreads(self.core, self.on_escape)
        self._call_threads.start(task, threads_max)

    def start_on_loop(self, task: RunTask) -> None:
        if not self._is_ending:
            self._call_loop(task.spec.template.concurrency_group).start(task)

    def _call_loop(self, group: str) -> CallLoop:
        loop = self._call_loops.get(group)
        if loop is None:
            from dualray.real.processes.actor_calls import CallLoop  # noqa: PLC0415 - it imports asyncio

            loop = self._call_loops[group] = CallLoop(self.core, self.on_escape)
        return loop

    @property
    def loops_of_calls(self) -> list[asyncio.AbstractEventLoop]:
        """The event loops on which methods of the actor run as coroutines."""
        return [each.loop for each in list(self._call_loops.values())]

    is_ahead = False

    def end_later(self, task: RunTask | TaskPushed, size_bytes: int, start_ns: int) -> None:
        raise NotImplementedError(
            "real mode cannot end a task at a later time: a task ends when the code of the task returns"
        )

    @property
    def is_on_loop(self) -> bool:
        from dualray.aio import is_on_loop  # noqa: PLC0415 - it imports asyncio

        return is_on_loop()

    def cancel_on_loop(self, task: TaskID) -> None:
        for loop in self._call_loops.values():
            loop.cancel(task)

    def silence(self) -> None:
        """Tell nobody of errors that nobody reads."""
        self._tell = lambda words: None

    def tell(self, words: str) -> None:
        self._tell(words)

    def pids(self) -> Mapping[str, int]:
        from dualray.real.observe.stacks import pids_of_cluster  # noqa: PLC0415 - few ask

        return {**pids_of_cluster(self.session), self.core.address: os.getpid()}

    def wait_for_calls(self) -> None:
        """Wait until the calls on threads and event loops have ended. From now on no other begins: it ends with us."""
        self._is_ending = True
        if self._call_threads is not None:
            self._call_threads.wait()
        for loop in self._call_loops.values():
            loop.wait()

    def is_of_process(self, exception: BaseException) -> bool:
        return isinstance(exception, Terminated)  # workers ignore SIGINT

    def run_at_exit(self) -> None:
        atexit._run_exitfuncs()

    def wake(self) -> None:
        self.loop.wake_if_asleep()
