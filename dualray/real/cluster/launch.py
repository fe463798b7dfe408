"""Starting and stopping the daemons of a cluster's nodes: for the command line and for `cluster_utils`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dualray.exceptions import AuthenticationError, DualrayError
from dualray.input_files import read_text
from dualray.real.cluster.node_options import START_TIMEOUT_S, NodeOptions
from dualray.real.net.addresses import parse_endpoint
from dualray.real.processes.offer import check_port, store_bytes, total_of
from dualray.real.session import session as sessions
from dualray.real.session.children import END_WITHIN_S, module_path
from dualray.real.session.session import Session
from dualray.shared.labels import as_pairs, parse_labels
from dualray.shared.model.config import Config
from dualray.shared.scenario.file import parse_growth
from dualray.shared.scenario.growth import Growth

LOOPBACK: Final = "127.0.0.1"
_STOP_TIMEOUT_S: Final = END_WITHIN_S + 10.0
"""More than a node takes whose processes are frozen."""
_STOP_LAUNCHED_TIMEOUT_S: Final = _STOP_TIMEOUT_S + 60.0
"""Of a daemon that has launched nodes, which has a minute to end those."""
_KILL_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.01
_STORE_PARTS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedNode:
    """A node that has joined.

    Attributes:
        process: its daemon.
        node: its name.
        address: host:port of the cluster's head.
        endpoint: host:port of this node's gateway.
        directory: of its session.
        lifeline: a descriptor whose end is the node's; None of one that lives on.
    """

    process: subprocess.Popen[bytes]
    node: str
    address: str
    endpoint: str
    directory: Path
    lifeline: int | None


def node_options(
    *,
    address: str | None,
    node_ip: str | None,
    port: int,
    num_cpus: float | None,
    num_gpus: float | None,
    resources: Mapping[str, float] | None,
    object_store_memory: int | None,
    config: Config,
    memory: int | None = None,
    labels: Mapping[str, str] | None = None,
    num_workers: int | None = None,
    metrics_port: int | None = None,
    num_redis_shards: int = 0,
    provider: Mapping[str, Any] | None = None,
) -> NodeOptions:
    """A node's options with their defaults filled in; `num_workers` is how many workers are started with each node,
    `provider` who starts further nodes (see `launch_plan`).

    Raises:
        ValueError: resources or labels that are wrong; more GPUs than there are; a port for metrics where somebody else
            listens.
    """
    if num_workers is not None:
        config = dataclasses.replace(config, workers_prestarted=num_workers)
    total, device_names = total_of(
        num_cpus, num_gpus, resources, memory, host=node_ip or LOOPBACK, is_head=address is None
    )
    return NodeOptions(
        address=address,
        node_ip=node_ip or LOOPBACK,
        port=port,
        total=[(name, units) for name, units in total.units],
        device_names={kind: list(names) for kind, names in device_names.items()},
        labels=list(as_pairs(parse_labels("labels", labels or {}))),
        store_bytes=object_store_memory or shared_store_bytes(),
        config=dataclasses.asdict(config),
        redis_shards=num_redis_shards,
        provider=dict(provider) if provider is not None else None,
        metrics_port=check_port(metrics_port, "metrics_port"),
        status_fd=-1,
    )


def launch_plan(growth: Growth, source: Path | None) -> dict[str, Any]:
    """What the head's daemon has to know to launch nodes. `source`: the file that says it; each has a ledger."""
    plan = growth.launch_plan()
    if plan["kind"] == "command":
        mark = hashlib.blake2b(str(source and source.absolute()).encode(), digest_size=4).hexdigest()
        name = f"{source.stem if source is not None else 'cluster'}-{mark}.jsonl"
        ledger = plan["said"]["ledger"] or Path.home() / ".dualray" / "launches" / name
        plan["said"]["ledger"] = str(Path(ledger).absolute())
    return plan


def read_growth(path: Path) -> Growth:
    """Read the file of a cluster that grows.

    Raises:
        ValueError: it cannot be read or used; the message says where, and what to write instead.
    """
    return parse_growth(_text_of(path), str(path), lambda name: _text_of(path.parent / name))


def _text_of(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: cannot be read: it is not text in UTF-8") from None


def shared_store_bytes() -> int:
    """The default of a node among others on one machine: a quarter of what the others leave of a lone node's default,
    so that all of them together never have more than that."""
    taken = sum(session.store_bytes for session in sessions.running())
    return max(int(store_bytes(None) - taken) // _STORE_PARTS, 64 << 20)


def start_node(
    options: NodeOptions, secret: bytes | None, *, is_detached: bool, ends_with_us: bool | None = None
) -> StartedNode:
    """Start a node's daemon and wait until the node has joined.

    Args:
        options: see NodeOptions.
        secret: the cluster's; None: that of the cluster's node on this machine, or, for a head, a new one.
        is_detached: it lives until it is stopped; else until this process ends or closes the lifeline.
        ends_with_us: it ends with this process, too, although it is detached. None: as `is_detached` says.
    Raises:
        DualrayError: it did not start; the message says why.
        AuthenticationError: there is no secret to join with.
    """
    sessions.sweep()
    if secret is None and options.address is not None:
        secret = _known_secret(options.address)
    has_lifeline = not is_detached if ends_with_us is None else ends_with_us
    lifeline_read, lifeline_write = os.pipe() if has_lifeline else (None, None)
    status_read, status_write = os.pipe()
    options = dataclasses.replace(options, is_detached=is_detached, status_fd=status_write, lifeline_fd=lifeline_read)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = module_path()
    environment.pop("DUALRAY_SECRET", None)
    with tempfile.TemporaryFile() as stderr:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "dualray.real.cluster.daemon", options.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if is_detached else None,
                stderr=stderr if is_detached else None,
                pass_fds=[fd for fd in (status_write, lifeline_read) if fd is not None],
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(status_write)
            if lifeline_read is not None:
                os.close(lifeline_read)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(secret or b"")
        status = _read_status(status_read)
        if "error" not in status:
            return StartedNode(
                process=process,
                node=status["node"],
                address=status["address"],
                endpoint=status["endpoint"],
                directory=Path(status["directory"]),
                lifeline=lifeline_write,
            )
        if lifeline_write is not None:
            os.close(lifeline_write)
        _wait_or_kill(process)
        stderr.seek(0)
        story = stderr.read().decode(errors="replace")
    raise DualrayError("\n".join(filter(None, (f"the node did not start: {status['error']}", story))))


def _read_status(fd: int) -> dict[str, str]:
    data = b""
    deadline = time.monotonic() + START_TIMEOUT_S + 10
    with os.fdopen(fd, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
            piece = pipe.read(65536)
            if not piece:
                break
            data += piece
    if not data:
        return {"error": "the node's daemon reported no reason"}
    status: dict[str, str] = json.loads(data)
    return status


def _known_secret(address: str) -> bytes:
    try:
        from dualray.real.cluster.joining import find_session  # noqa: PLC0415 - psutil takes time to import

        return find_session(address).secret
    except DualrayError:
        raise AuthenticationError(
            f"this machine needs the secret of the cluster at {address}. `dualray start --head` prints the path of "
            "the secret file: pass a copy of the file with --secret-file, or set DUALRAY_SECRET to the content of "
            "the secret file"
        ) from None


def _wait_or_kill(process: subprocess.Popen[Any], timeout_s: float = _KILL_TIMEOUT_S) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def drain_node(node: StartedNode, timeout_s: float) -> bool:
    """Let a node leave in good order; whether it did within `timeout_s`. Call `stop_node` afterwards."""
    node.process.send_signal(signal.SIGUSR1)
    try:
        node.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def stop_node(node: StartedNode) -> None:
    """End a node and everything that it has started; returns when its daemon is gone."""
    if node.lifeline is not None:
        os.close(node.lifeline)
    else:
        node.process.terminate()
    _wait_or_kill(node.process, _STOP_TIMEOUT_S)


def _still_there(ending: list[Path], timeout_s: float) -> list[Path]:
    """Wait for founders to end; the sessions of those that have not in time."""
    deadline = time.monotonic() + timeout_s
    while (alive := [each for each in ending if sessions.founder_of(each)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return alive


def _launches(directory: Path) -> bool:
    """Whether a session's daemon has launched further nodes, which it ends first."""
    return (directory / sessions.PROVIDER_SOCKET).exists()


def _is_at(session: Session, address: str) -> bool:
    from dualray.real.cluster.joining import is_at  # noqa: PLC0415 - psutil takes time to import

    return is_at(session, parse_endpoint(address, "--address"))


def stop_detached(command: str | None = None, address: str | None = None) -> list[str]:
    """Stop nodes of this user on this machine that `dualray start` or `ray start` has started; their names and
    clusters.

    Args:
        command: which of the two; None: both.
        address: host:port of the cluster whose nodes are stopped; None: of every cluster.
    Raises:
        ValueError: the address is wrong.
    """
    stopped = []
    ending: list[Path] = []
    for session in sessions.running():
        if session.cluster is None or not session.cluster.is_detached:
            continue
        if command is not None and session.cluster.command != command:
            continue
        if address is not None and not _is_at(session, address):
            continue
        if sessions.end_founder(session.directory, signal.SIGTERM):
            ending.append(session.directory)
            stopped.append(f"{session.node} of the cluster at {session.cluster.address}")
    timeout_s = _STOP_TIMEOUT_S if not any(_launches(directory) for directory in ending) else _STOP_LAUNCHED_TIMEOUT_S
    for directory in _still_there(ending, timeout_s):
        sessions.end_founder(directory, signal.SIGKILL)
    _still_there(ending, _KILL_TIMEOUT_S)
    sessions.sweep()
    return stopped
