"""Real mode's runtime: `init()` starts a head and a node on this machine and stops them at exit."""

from __future__ import annotations

import atexit
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from dualray.exceptions import DualrayError
from dualray.real import session as sessions
from dualray.real.head import CONTROL_PLANE_FILE
from dualray.real.process import UserProcess
from dualray.real.session import Session
from dualray.shared.core_worker import CoreWorker
from dualray.shared.model.commands import RunTask
from dualray.shared.model.config import Config
from dualray.shared.model.events import Started
from dualray.shared.model.ids import HEAD, Address, NodeID, root_task_id
from dualray.shared.model.resources import parse_resources

DRIVER = Address("driver-1")
NODE = NodeID("node-0")

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_STORE_SHARE_PERCENT = 30


class RealRuntime:
    """The driver's runtime: owns the processes that `init` has started."""

    mode = "real"

    def __init__(self, session: Session) -> None:
        self.session = session
        self.control_plane = ""
        self._is_stopped = False
        self._lifelines: list[int] = []
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._pid = os.getpid()
        self._process = UserProcess(
            session=session,
            address=DRIVER,
            node=NODE,
            root=root_task_id(session.job_root, 1),
            is_driver=True,
            on_task=_refuse_task,
            on_lost=self._on_peer_lost,
            on_error=self._on_error,
        )

    @property
    def verbs(self) -> CoreWorker:
        return self._process.core

    # ---- Start -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start head and node, and wait until the cluster can be used."""
        self._spawn("head", "dualray.real.head")
        self._spawn(NODE, "dualray.real.node", NODE)
        self._process.start()
        self.verbs.dispatch(Started())
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.verbs.machine.cluster:
            self._check_children()
            if time.monotonic() > deadline:
                raise DualrayError(f"the cluster did not start within {_START_TIMEOUT_S:g} s{self._last_logs()}")
            time.sleep(0.002)
        self.control_plane = (self.session.directory / CONTROL_PLANE_FILE).read_text()
        logging.getLogger("dualray").info(
            "real mode: %s on this machine, control plane: %s", self.session.total, self.control_plane
        )
        atexit.register(self.shutdown)

    def _spawn(self, name: str, module: str, *args: str) -> None:
        """Start a process of ours; it ends when the lifeline that we hold closes."""
        read_fd, write_fd = os.pipe()
        try:
            paths = [path or str(Path.cwd()) for path in sys.path]
            environment = dict(os.environ)
            environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
            environment[sessions.ENVIRONMENT] = str(self.session.directory)
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", module, str(self.session.directory), str(read_fd), *args],
                pass_fds=(read_fd,),
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except BaseException:
            os.close(write_fd)
            raise
        finally:
            os.close(read_fd)
        self._lifelines.append(write_fd)

    def _check_children(self) -> None:
        for name, child in self._children.items():
            status = child.poll()
            if status is not None:
                raise DualrayError(f"the process {name} ended with status {status} while starting{self._last_logs()}")

    def _last_logs(self) -> str:
        text = ""
        for name in self._children:
            path = self.session.log_path(name)
            if path.exists():
                text += f"\nthe last lines of {name}'s log:\n" + "\n".join(path.read_text().splitlines()[-15:])
        return text

    # ---- Trouble ---------------------------------------------------------------------------------------------

    def _on_peer_lost(self, peer: str) -> None:
        """Without head or node manager nothing goes on: whoever waits is told so."""
        if peer in (HEAD, NODE) and not self._is_stopped:
            what = "head process" if peer == HEAD else f"node manager {peer}"
            self.verbs.fail(f"the {what} is gone{self._last_logs()}\nCall dualray.shutdown() and init() again.")

    def _on_error(self, error: Exception) -> None:
        logging.getLogger("dualray").critical("dualray met a bug in the driver", exc_info=error)
        self.verbs.fail(f"dualray met a bug in the driver: {error!r}")

    # ---- End -------------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Stop every process and remove every file that `init` has made. Idempotent."""
        if self._is_stopped or os.getpid() != self._pid:  # a forked child of the driver's owns nothing here
            return
        self._is_stopped = True
        atexit.unregister(self.shutdown)
        self._process.close()
        for fd in self._lifelines:
            os.close(fd)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        for name, child in reversed(self._children.items()):
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                logging.getLogger("dualray").error("%s does not end; it is killed", name)
                child.kill()
                child.wait()
        self._process.store.close(is_last=True)
        self.session.remove()


def _refuse_task(task: RunTask) -> None:
    raise AssertionError(f"a driver runs no tasks, and was given {task.spec.template.name}")


def start(settings: Mapping[str, Any], config: Config) -> RealRuntime:
    """Start a cluster on this machine.

    Raises:
        ValueError: resources that are wrong, before anything has been started.
        DualrayError: a process did not start; the message has the last lines of its log.
    """
    num_cpus = settings["num_cpus"]
    total = parse_resources(
        num_cpus=len(os.sched_getaffinity(0)) if num_cpus is None else num_cpus,
        num_gpus=settings["num_gpus"],
        resources=settings["resources"],
    )
    record_directory = settings["decision_log"]
    if record_directory is not None:
        record_directory = record_directory.absolute()
        record_directory.mkdir(parents=True, exist_ok=True)
    session = sessions.create(
        config=config,
        seed=settings["seed"],
        job_root=str(settings["object_id_seed"] or ""),
        total=total,
        store_bytes=_store_bytes(settings["object_store_memory"]),
        log_to_driver=settings["log_to_driver"],
        record_directory=record_directory,
    )
    try:
        started = RealRuntime(session)
    except BaseException:
        session.remove()
        raise
    try:
        started.start()
    except BaseException:
        started.shutdown()
        raise
    return started


def _store_bytes(wanted: int | None) -> int:
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
