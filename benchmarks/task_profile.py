"""Where the microseconds of one empty task go: `python -m benchmarks.task_profile`.

A driver's and a worker's core worker run in one process, with the real machines, codec and frames between them, and
without sockets, processes and threads: what is left is what Python costs. Each stage is timed over all tasks of a
round, and the best of the rounds counts, so that other work on the machine hardly shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dualray.real.messages import Post, decode_messages
from dualray.shared.core_worker import CoreWorker
from dualray.shared.host import Execution
from dualray.shared.model.commands import WriteRecord, WriteRecords
from dualray.shared.model.config import Config
from dualray.shared.model.events import Event, LeaseGranted
from dualray.shared.model.ids import Address, FunctionID, LeaseID, NodeID, RequestID, root_task_id
from dualray.shared.model.resources import parse_resources
from dualray.shared.model.specs import FunctionTemplate

DRIVER, NODE, WORKER = Address("driver-1"), NodeID("node-0"), Address("node-0/w0")
STAGES = {
    "submit": ("driver", "pack the arguments, derive the ids, record task and result, queue or push"),
    "decode pushed": ("worker", "a frame of pushes back into messages"),
    "take in": ("worker", "queue what was pushed, start the next"),
    "execute": ("worker", "unpack, call, pickle the result, report; begin with the next"),
    "decode finished": ("driver", "a frame of results back into messages"),
    "finished": ("driver", "record the result, free the place, push the next task"),
    "get": ("driver", "one get of all results"),
    "drop": ("driver", "free the results when their references go"),
}


class _Signal:
    def __init__(self) -> None:
        self.is_set = False

    def wait(self) -> None:
        assert self.is_set, "everything has been delivered before the get"

    def set(self) -> None:
        self.is_set = True


class _Host:
    """A process without a process: messages are left in `frames`, tasks in `tasks`."""

    store: Any = None
    is_traced = is_logged = False
    trace = log = None

    def __init__(self, functions: dict[FunctionID, bytes]) -> None:
        self.lock = threading.RLock()
        self.frames: list[tuple[str, bytes]] = []
        self._functions = functions
        self._post = Post(lambda to, header, _: self.frames.append((to, header)))
        self.end_step = self._post.flush
        self.flush = self._post.flush_all
        self.rows: list[WriteRecord | WriteRecords] = []
        self.write_record = self.rows.append
        self.write_records = self.rows.append
        self.put_function = functions.__setitem__
        self.get_function = functions.__getitem__
        self.now_ns = time.monotonic_ns

    def send(
        self, to: Address, message: Event, payloads: Sequence[tuple[bytes, bytes]], *, urgent: bool = True
    ) -> None:
        self._post.add(to, message, payloads, urgent=urgent)

    def arm_timer(self, timer: str, delay_ns: int) -> None:
        """Leases are never idle for long here."""

    def cancel_timer(self, timer: str) -> None:
        """See above."""

    def new_signal(self) -> _Signal:
        return _Signal()

    def call(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], task: Execution
    ) -> Any:
        return function(*args, **kwargs)

    def tasks_came(self) -> None:
        """They are asked for below."""

    def breathe(self) -> None:
        """Nothing comes by itself."""

    def wake(self) -> None:
        """See above."""

    def frames_to(self, address: Address) -> list[bytes]:
        """The frames sent there so far; all others are dropped."""
        self.flush()
        frames, self.frames = self.frames, []
        return [header for to, header in frames if to == address]


def empty() -> None:
    """The task."""


def one_round(count: int) -> dict[str, float]:
    """Seconds that each stage of `count` tasks took."""
    functions: dict[FunctionID, bytes] = {}
    driver_host, worker_host = _Host(functions), _Host(functions)
    driver = CoreWorker(
        address=DRIVER, node=NODE, config=Config(), host=driver_host, root=root_task_id("", 1), is_driver=True
    )
    worker = CoreWorker(
        address=WORKER, node=NODE, config=Config(), host=worker_host, root=root_task_id(WORKER, 0), is_driver=False
    )
    cpu = parse_resources(num_cpus=1, num_gpus=0, resources=None)
    function = driver.export(empty, duration=None, what="the empty task")
    template = FunctionTemplate(function_id=function, name="empty", resources=cpu, placement=cpu)
    seconds = dict.fromkeys(STAGES, 0.0)

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        seconds[stage] += time.thread_time() - start

    refs = driver.submit_task(template, (), {})
    granted = LeaseGranted(
        request_id=RequestID(f"{DRIVER}#0"),
        lease_id=LeaseID("lease"),
        worker=WORKER,
        node=NODE,
        incarnation=0,
        gpu_ids=(),
    )
    driver.dispatch(granted)
    with timed("submit"):
        for _ in range(count):
            refs.append(driver.submit_call(template, (), {}))
    while frames := driver_host.frames_to(WORKER):
        for frame in frames:
            with timed("decode pushed"):
                messages = decode_messages(memoryview(frame), [])
            with timed("take in"):
                worker.on_messages(messages)
        with timed("execute"):
            while (task := worker.next_task()) is not None:
                worker.execute(task)
        for frame in worker_host.frames_to(DRIVER):
            with timed("decode finished"):
                messages = decode_messages(memoryview(frame), [])
            with timed("finished"):
                driver.on_messages(messages)
    with timed("get"):
        driver.get(refs, None)
    with timed("drop"):
        for ref in refs:
            driver.drop(ref.object_id)
        driver.take_in_finalizers()
    return seconds


def main(
    count: Annotated[int, typer.Option(help="Tasks in one round.")] = 2000,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the best counts.")] = 20,
) -> None:
    """Print where the microseconds of one empty task go."""
    best = dict.fromkeys(STAGES, float("inf"))
    for _ in range(rounds):
        for stage, seconds in one_round(count).items():
            best[stage] = min(best[stage], seconds / count * 1e6)
    table = Table(title="Microseconds of one empty task", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("process", "stage", "µs", "what"):
        table.add_column(heading, justify="right" if heading == "µs" else "left")
    for process in ("driver", "worker"):
        stages = [stage for stage, (where, _) in STAGES.items() if where == process]
        for stage in stages:
            table.add_row(process, stage, f"{best[stage]:.1f}", STAGES[stage][1])
        table.add_row(process, "together", f"{sum(best[stage] for stage in stages):.1f}", "", end_section=True)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
