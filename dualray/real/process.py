"""A process that runs user code: the driver, and every worker. The `Host` of its core worker.

One thread, `dualray-io`, runs the loop: it reads sockets and fires timers. User code runs on other threads: in a worker
the main thread runs one task at a time. Whoever has an event for the machine takes the lock, hands it over and carries
out the commands; sending never waits.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.random import MT19937, RandomState
from numpy.random import set_state as set_numpy_state

from dualray.exceptions import ControlPlaneError
from dualray.real.control_plane import ControlPlane
from dualray.real.loop import Loop
from dualray.real.object_store import SharedMemoryStore
from dualray.real.recorder import Recorder
from dualray.real.runner import Timers, decode_message, encode_message
from dualray.real.session import Session
from dualray.real.transport import Transport
from dualray.shared.core_worker import CoreWorker
from dualray.shared.decision_log import MachineSpec
from dualray.shared.host import Execution
from dualray.shared.model.codec import pack
from dualray.shared.model.commands import RunTask
from dualray.shared.model.events import Event, TimerFired
from dualray.shared.model.ids import Address, FunctionID, NodeID, TaskID
from dualray.shared.seeding import stream_seed, task_seed

_FUNCTIONS = "functions"


class UserProcess:
    """See the module.

    Args:
        on_task: called with each task that is to run; must not block.
        on_lost: called with the address of a peer whose connection closed.
        on_error: called with an exception that was met on the loop's thread.
    """

    def __init__(
        self,
        *,
        session: Session,
        address: Address,
        node: NodeID,
        root: TaskID,
        is_driver: bool,
        on_task: Callable[[RunTask], None],
        on_lost: Callable[[str], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self.session = session
        self.address = address
        self.lock = threading.RLock()
        self.store = SharedMemoryStore(session.store_directory)
        self.run_task = on_task
        spec = MachineSpec(kind="owner", address=address, node=node, config=session.config, is_driver=is_driver)
        self.recorder = Recorder(session.record_directory, spec, seed=session.seed)
        self.core = CoreWorker(
            address=address, node=node, config=session.config, host=self, root=root, is_driver=is_driver
        )
        self.loop = Loop(on_error)
        self._timers = Timers(self.loop)
        self._control_plane: ControlPlane | None = None
        self.transport = Transport(
            self.loop,
            address=address,
            socket_dir=session.sockets,
            secret=session.secret,
            on_message=self._on_message,
            on_peer_lost=on_lost,
            gateway_for=session.gateway_for,
        )
        self._thread = threading.Thread(target=self.loop.run, name="dualray-io", daemon=True)

    def start(self) -> None:
        """Begin to read sockets."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading and writing; whoever waits is woken and raises."""
        self.core.is_closed = True
        self.core.abandon_waits()
        if self._thread.is_alive():
            self.transport.close()
            self.loop.stop()
            self._thread.join(5.0)
        if self._control_plane is not None:
            self._control_plane.close()
        self.recorder.close()
        self.loop.close()

    def _on_message(self, peer: str, header: memoryview, buffers: list[memoryview]) -> None:
        message, payloads = decode_message(header, buffers)
        self.core.on_message(message, payloads)

    # ---- Host ------------------------------------------------------------------------------------------------

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def send(self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]]) -> None:
        header, buffers = encode_message(message, payloads)
        self.transport.send(to, header, buffers)

    def arm_timer(self, timer: str, delay_ns: int) -> None:
        self._timers.arm(timer, delay_ns, lambda name: self.core.dispatch(TimerFired(timer=name)))

    def cancel_timer(self, timer: str) -> None:
        self._timers.cancel(timer)

    def new_signal(self) -> threading.Event:
        return threading.Event()

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        """Call user code, with the GPUs of its lease in the environment and its random streams seeded."""
        if task.gpu_ids:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, task.gpu_ids))
        if self.session.seed is not None:
            seed = task_seed(self.session.seed, task.task_id)
            random.seed(stream_seed(seed, b"random"))
            generator = RandomState(MT19937(stream_seed(seed, b"numpy")))
            set_numpy_state(generator.get_state())  # noqa: NPY002 - it is the user's global generator that is seeded
        return function(*args, **kwargs)

    def write_record(self, table: str, key: str, fields: tuple[tuple[str, str], ...]) -> None:
        self._tables().write_behind(table, key.encode(), pack(dict(fields)))

    def put_function(self, function: FunctionID, pickled: bytes) -> None:
        self._tables().put(_FUNCTIONS, function, pickled)

    def get_function(self, function: FunctionID) -> bytes:
        pickled = self._tables().get(_FUNCTIONS, function)
        if pickled is None:
            raise ControlPlaneError(f"the function table has no function {function.hex()}")
        return pickled

    def _tables(self) -> ControlPlane:
        with self.lock:
            if self._control_plane is None:
                path = self.session.redis_directory / "redis.sock"
                self._control_plane = ControlPlane(path, self.session.password)
            return self._control_plane

    @property
    def log(self) -> Callable[..., None]:
        return self.recorder.log

    @property
    def trace(self) -> Callable[..., None]:
        return self.recorder.trace

    def wake(self) -> None:
        self.loop.call_soon(self.core.take_in_finalizers)
