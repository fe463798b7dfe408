"""Real mode's runtime: `init()` starts a head and a node on this machine and stops them at exit; `init(address=...)`
joins a cluster through the node that it has on this machine, and starts and stops nothing."""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from dualray.exceptions import DualrayError
from dualray.real import session as sessions
from dualray.real.children import Children, last_logs
from dualray.real.cluster_address import find_session, next_driver
from dualray.real.driver_output import DriverOutput
from dualray.real.gpus import gpus_to_offer
from dualray.real.head import CONTROL_PLANE_FILE
from dualray.real.process import UserProcess
from dualray.real.session import METRICS_FILE, Session
from dualray.real.worker_output import FLUSH, FLUSHED, LINES
from dualray.shared.core_worker import CoreWorker
from dualray.shared.model.commands import RunTask
from dualray.shared.model.config import Config
from dualray.shared.model.events import Started
from dualray.shared.model.ids import FIRST_DRIVER, HEAD, Address, root_task_id
from dualray.shared.model.resources import Resources, parse_resources

LOOPBACK = "127.0.0.1"

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_LAST_LINES_TIMEOUT_S = 1.0
_STORE_SHARE_PERCENT = 30


class RealRuntime:
    """The driver's runtime: owns the processes that `init` has started, if it has.

    Args:
        session: the node's, made by this process or, with `joins`, by a node's daemon.
        driver, job: this driver's address and number; both are used once in a cluster.
        joins: start and stop nothing.
    """

    mode = "real"

    def __init__(self, session: Session, *, driver: Address = FIRST_DRIVER, job: int = 1, joins: bool = False) -> None:
        self.session = session
        self.control_plane = ""
        self._joins = joins
        self._is_stopped = False
        self._children = Children(session)
        self._pid = os.getpid()
        self._output = DriverOutput(session.node)
        self._flushed = threading.Semaphore(0)
        self._lost = threading.Event()
        self._process = UserProcess(
            session=session,
            address=driver,
            node=session.node,
            root=root_task_id(session.job_root, job),
            is_driver=True,
            on_task=_refuse_task,
            on_lost=self._on_peer_lost,
            on_error=self._on_error,
            tell=self._output.tell,
            on_raw=self._on_raw,
        )

    @property
    def verbs(self) -> CoreWorker:
        return self._process.core

    @property
    def gpu_names(self) -> tuple[str, ...]:
        return self.session.gpu_names

    @property
    def metrics_address(self) -> str | None:
        """host:port where this node serves its metrics; None when it does not."""
        path = self.session.directory / METRICS_FILE
        return path.read_text() if path.exists() else None

    # ---- Start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start head and node, unless they are there, and wait until the cluster can be used."""
        if not self._joins:
            self._children.spawn(HEAD, "dualray.real.head")
            self._children.spawn(self.session.node, "dualray.real.node", self.session.node)
        self._process.start()
        self.verbs.dispatch(Started())
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.verbs.machine.cluster:
            self._children.check()
            if time.monotonic() > deadline:
                what = "answer" if self._joins else "start"
                raise DualrayError(f"the cluster did not {what} within {_START_TIMEOUT_S:g} s{self._last_logs()}")
            time.sleep(0.002)
        if self.session.cluster is None:
            self.control_plane = (self.session.directory / CONTROL_PLANE_FILE).read_text()
            logging.getLogger("dualray").info(
                "real mode: %s on this machine, control plane: %s", self.session.total, self.control_plane
            )
        else:
            logging.getLogger("dualray").info(
                "real mode: %s joined the cluster at %s through %s",
                self._process.address,
                self.session.cluster.address,
                self.session.node,
            )
        atexit.register(self.shutdown)

    def _last_logs(self) -> str:
        return last_logs(self.session, [HEAD, self.session.node])

    # ---- Trouble ---------------------------------------------------------------------------------------------

    def _on_peer_lost(self, peer: str) -> None:
        """Without head or node manager nothing goes on: whoever waits is told so."""
        if peer in (HEAD, self.session.node) and not self._is_stopped:
            self._lost.set()
            what = "head process" if peer == HEAD else f"node manager {peer}"
            self.verbs.fail(f"the {what} is gone{self._last_logs()}\nCall dualray.shutdown() and init() again.")

    # ---- What workers print ----------------------------------------------------------------------------------

    def _on_raw(self, peer: str, header: memoryview) -> None:
        if header[0] == LINES and self.session.log_to_driver:
            self._output.put(header[1:])
        elif header[0] == FLUSHED:
            self._flushed.release()

    def _fetch_last_lines(self) -> None:
        """What workers have printed up to now is to be shown before we leave."""
        if not self.session.log_to_driver or self._lost.is_set() or not self.verbs.execution.submitted:
            return
        nodes = [info.node for info in self.verbs.machine.cluster]
        for node in nodes:
            self._process.transport.send(node, bytes((FLUSH,)))
        deadline = time.monotonic() + _LAST_LINES_TIMEOUT_S
        for _ in nodes:
            if self._lost.is_set() or not self._flushed.acquire(timeout=max(0.0, deadline - time.monotonic())):
                return

    def _on_error(self, error: Exception) -> None:
        logging.getLogger("dualray").critical("dualray met a bug in the driver", exc_info=error)
        self.verbs.fail(f"dualray met a bug in the driver: {error!r}")

    # ---- End -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Leave the cluster; stop every process and remove every file that `init` has made. Idempotent."""
        if self._is_stopped or os.getpid() != self._pid:  # a forked child of the driver's owns nothing here
            return
        self._is_stopped = True
        atexit.unregister(self.shutdown)
        self.verbs.take_in_finalizers()
        self.verbs.tell_unread_failures()
        self._fetch_last_lines()
        self._process.close()
        self._output.close()
        self._process.store.close(is_last=not self._joins)
        if not self._joins:
            self._children.end(_STOP_TIMEOUT_S)
            self.session.remove()


def _refuse_task(task: RunTask) -> None:
    raise AssertionError(f"a driver runs no tasks, and was given {task.spec.template.name}")


def start(settings: Mapping[str, Any], config: Config) -> RealRuntime:
    """Start a cluster on this machine, or join the one that `address` names.

    Raises:
        ValueError: resources that are wrong, before anything has been started; settings that a cluster has already.
        DualrayError: a process did not start; the message has the last lines of its log. There is no such cluster, or
            it has no node on this machine.
    """
    if settings["address"] is not None:
        return _join(settings)
    total, gpu_names = total_of(settings["num_cpus"], settings["num_gpus"], settings["resources"])
    session = sessions.create(
        config=config,
        seed=settings["seed"],
        job_root=str(settings["object_id_seed"] or ""),
        total=total,
        gpu_names=gpu_names,
        store_bytes=store_bytes(settings["object_store_memory"]),
        log_to_driver=settings["log_to_driver"] and not settings["redirect_output"],
        log_directory=_made(settings["log_directory"]),
        redis_shards=settings["num_redis_shards"],
        metrics_port=check_port(settings["metrics_port"], "metrics_port"),
        record_directory=_made(settings["decision_log"]),
    )
    try:
        started = RealRuntime(session)
    except BaseException:
        session.remove()
        raise
    return _started(started)


def _join(settings: Mapping[str, Any]) -> RealRuntime:
    """Take part in a running cluster as one more driver."""
    session = find_session(settings["address"])
    number = next_driver(session)
    return _started(
        RealRuntime(
            dataclasses.replace(
                session,
                job_root=str(settings["object_id_seed"] or session.job_root),
                log_to_driver=settings["log_to_driver"] and not settings["redirect_output"],
                record_directory=_made(settings["decision_log"]) or session.record_directory,
            ),
            driver=Address(f"driver-{number}@{session.node}"),
            job=number,
            joins=True,
        )
    )


def _started(runtime: RealRuntime) -> RealRuntime:
    try:
        runtime.start()
    except BaseException:
        runtime.shutdown()
        raise
    return runtime


def check_port(port: int | None, name: str) -> int | None:
    """The port, if metrics can be served there now.

    Raises:
        ValueError: somebody else listens there.
    """
    if port:
        try:
            socket.create_server((LOOPBACK, port)).close()
        except OSError as error:
            raise ValueError(
                f"{name}={port}: {error.strerror} at {LOOPBACK}: name another port, or 0 for any"
            ) from None
    return port


def _made(directory: Path | None) -> Path | None:
    if directory is not None:
        directory = directory.absolute()
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def total_of(
    num_cpus: float | None, num_gpus: float | None, resources: Mapping[str, float] | None
) -> tuple[Resources, tuple[str, ...]]:
    """What a node of this machine has, and its GPUs' names; by default as many CPUs as this process may use, and the
    GPUs that there are and CUDA_VISIBLE_DEVICES shows.

    Raises:
        ValueError: resources that are wrong; more GPUs than there are.
    """
    if num_cpus is None:
        num_cpus = len(os.sched_getaffinity(0))
    total = parse_resources(num_cpus=num_cpus, num_gpus=num_gpus, resources=resources)
    gpu_names = gpus_to_offer(num_gpus)
    if num_gpus is None:
        total = parse_resources(num_cpus=num_cpus, num_gpus=len(gpu_names), resources=resources)
    return total, gpu_names


def store_bytes(wanted: int | None) -> int:
    """The capacity of the object store: as wanted, or 30 % of memory, at most what shared memory has free.

    Raises:
        ValueError: more is wanted than shared memory has free.
    """
    free = sessions.shared_memory_free_bytes()
    if wanted is not None and wanted > free:
        raise ValueError(
            f"object_store_memory={wanted:,} bytes, and {sessions.SHARED_MEMORY} has {free:,} bytes free: ask for "
            f"less, or make it larger (mount -o remount,size=..., or docker run --shm-size=...)"
        )
    share: int = psutil.virtual_memory().total * _STORE_SHARE_PERCENT // 100
    if wanted is None and free < share:
        logging.getLogger("dualray").warning(
            "%s has %s bytes free: the object store gets those, and not %s, %d %% of memory",
            sessions.SHARED_MEMORY,
            f"{free:,}",
            f"{share:,}",
            _STORE_SHARE_PERCENT,
        )
    return wanted or min(share, free)
