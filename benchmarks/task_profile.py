"""Where the microseconds of one empty task go: `python -m benchmarks.task_profile`.

A driver's and a worker's core worker run in one process, with the real machines, codec and frames between them, and
without sockets, processes and threads: what is left is what Python costs. CPU time of each stage is summed over all
tasks of a round, and the best of the rounds counts, so that other work on the machine hardly shows. Many tasks that are
submitted before the first result is read are one thing, tasks one at a time another: reading the clock adds 0.5 us to
each stage of those.
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

import dualray
from dualray.real.net.messages import Post, decode_messages
from dualray.shared.core.core_worker import CoreWorker
from dualray.shared.core.execution import Execution
from dualray.shared.core.layout import deserialize
from dualray.shared.core.task_runner import Export
from dualray.shared.core.task_times import new_times
from dualray.shared.model.commands import WriteRecord, WriteRecords
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.events import Event, LeaseGranted
from dualray.shared.model.ids import Address, FunctionID, LeaseID, NodeID, RequestID, root_task_id
from dualray.shared.model.specs import FunctionTemplate, Ref

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
    is_traced = is_logged = is_ahead = False
    trace = log = None
    new_times = staticmethod(new_times)

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
        self.now_ns = time.monotonic_ns

    def load_function(self, function: FunctionID) -> Any:
        """What a worker has loaded."""
        return deserialize(self._functions[function])

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

    def yield_point(self) -> None:
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


class _Pair:
    """A driver that holds a lease of a worker, and both in this process."""

    def __init__(self) -> None:
        functions: dict[FunctionID, bytes] = {}
        self.driver_host, self.worker_host = _Host(functions), _Host(functions)
        self.driver = CoreWorker(
            address=DRIVER, node=NODE, config=Config(), host=self.driver_host, root=root_task_id("", 1), is_driver=True
        )
        self.worker = CoreWorker(
            address=WORKER,
            node=NODE,
            config=Config(),
            host=self.worker_host,
            root=root_task_id(WORKER, 0),
            is_driver=False,
        )
        cpu = parse_resources(num_cpus=1, num_gpus=0, resources=None)
        function = self.driver.export(Export(empty), "the empty task")
        self.template = FunctionTemplate(function_id=function, name="empty", resources=cpu, placement=cpu)
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.first = self.submit()
        granted = LeaseGranted(
            request_id=RequestID(f"{DRIVER}#0"),
            lease_id=LeaseID("lease"),
            worker=WORKER,
            node=NODE,
            incarnation=0,
            device_ids=(),
        )
        self.driver.dispatch(granted)

    def submit(self) -> Ref:
        """Call the empty task."""
        return self.driver.submit_call(self.template, (), {})

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.seconds[stage] += time.thread_time() - start

    def run_all(self) -> None:
        """Let the worker run what is pushed, until the driver pushes no more."""
        while frames := self.driver_host.frames_to(WORKER):
            for frame in frames:
                with self.timed("decode pushed"):
                    messages = decode_messages(memoryview(frame), [])
                with self.timed("take in"):
                    self.worker.on_messages(messages)
            with self.timed("execute"):
                while (task := self.worker.next_task()) is not None:
                    self.worker.execute(task)
            for frame in self.worker_host.frames_to(DRIVER):
                with self.timed("decode finished"):
                    messages = decode_messages(memoryview(frame), [])
                with self.timed("finished"):
                    self.driver.on_messages(messages)

    def drop(self, refs: list[Ref]) -> None:
        """Let references go."""
        with self.timed("drop"):
            for ref in refs:
                self.driver.drop(ref.object_id)
            self.driver.take_in_finalizers()


def one_round(count: int) -> dict[str, float]:
    """Seconds that each stage of `count` tasks took, of which all are submitted before the first result is read."""
    pair = _Pair()
    refs = [pair.first]
    with pair.timed("submit"):
        refs += [pair.submit() for _ in range(count)]
    pair.run_all()
    with pair.timed("get"):
        pair.driver.get(refs, None)
    pair.drop(refs)
    return pair.seconds


def one_at_a_time(count: int) -> dict[str, float]:
    """Seconds that each stage of `count` tasks took, one after another; beginning to wait is not among the stages."""
    pair = _Pair()
    pair.run_all()
    pair.seconds = dict.fromkeys(STAGES, 0.0)
    for _ in range(count):
        with pair.timed("submit"):
            ref = pair.submit()
        pair.driver.get_async(ref, lambda: None)  # the driver waits: nothing is held back
        pair.run_all()
        with pair.timed("get"):
            pair.driver.get([ref], None)
        pair.drop([ref])
    return pair.seconds


def main(
    count: Annotated[int, typer.Option(help="Tasks in one round.")] = 2000,
    rounds: Annotated[int, typer.Option(help="Rounds, of which the best counts.")] = 20,
) -> None:
    """Print where the microseconds of one empty task go."""
    ways = {"many at once": one_round, "one at a time": one_at_a_time}
    best = {way: dict.fromkeys(STAGES, float("inf")) for way in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            for stage, seconds in run(count).items():
                best[way][stage] = min(best[way][stage], seconds / count * 1e6)
    core = "compiled core" if dualray.__compiled__ else "core of pure Python"
    table = Table(title=f"Microseconds of one empty task, {core}", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("process", "stage", *ways, "what"):
        table.add_column(heading, justify="right" if heading in ways else "left")
    for process in ("driver", "worker"):
        stages = [stage for stage, (where, _) in STAGES.items() if where == process]
        for stage in stages:
            table.add_row(process, stage, *(f"{best[way][stage]:.1f}" for way in ways), STAGES[stage][1])
        sums = (f"{sum(best[way][stage] for stage in stages):.1f}" for way in ways)
        table.add_row(process, "together", *sums, "", end_section=True)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
