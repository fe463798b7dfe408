"""A session: the files that the processes of one `init`, or of one node of a cluster, share, and their removal.

    <tmp>/dualray-<founder's pid>-<mark>-<token>/    mode 0700; the founder is the driver, or a node's daemon
        session.json      settings that every process reads
        secret            the cluster's secret, mode 0600
        sockets/          one Unix socket a process
        redis/            the control plane's server
        logs/             what head and node manager have to say, and what each worker prints
        stacks/           one file a worker: where its threads were when somebody asked (stacks.py)
        gateway           of a cluster: where processes of other machines are asked for (cluster/gateway.py)
    /dev/shm/dualray-<founder's pid>-<mark>-<token>/    the node's object store
    <spill_directory>/dualray-...                       the same name again, if the objects are spilled elsewhere

The mark says which process of that pid the founder is: when it began, and since which start of the machine. A process
that has got the pid of a founder that is gone is so never taken for it, and never sent a signal.

Who removes it: the head, or the node where there is none, when the founder is gone; a founder that ends cleanly makes
sure. What nobody could remove, because all was killed at once, the next `init` or `dualray start` of this user sweeps.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import signal
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from dualray.exceptions import rays_words
from dualray.real import files
from dualray.real.net.addresses import home_of
from dualray.shared.model.accelerators import Names
from dualray.shared.model.config import Config
from dualray.shared.model.ids import HEAD, NodeID
from dualray.shared.model.resources import Resources

RAYS_VARIABLE: Final = "RAY_TMPDIR"
_PREFIX = "dualray-"
SHARED_MEMORY = Path("/dev/shm")
_NAMES_TRIED_MAX = 100

ENVIRONMENT = "DUALRAY_SESSION"
"""Every process of a session has its directory here: to be found, and to be told apart."""


FIRST_NODE = NodeID("node-0")
LOOPBACK = "127.0.0.1"
GATEWAY_FILE = "gateway"
CONTROL_PLANE_FILE = "control_plane"
"""Which control plane's server it is; written by the head once that answers."""
METRICS_FILE = "metrics"
"""Where the node serves its metrics, host:port; written by the node manager when it does."""
PROVIDER_SOCKET = "provider"
"""Where the provider of nodes takes the head's orders, in a cluster that grows."""
JOINED_FILE = "joined"
"""Made by the node manager when the head has welcomed it."""


START_COMMAND: Final = "dualray start"
RAYS_START_COMMAND: Final = "ray start"
"""The same, of programs under the name `ray`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlace:
    """Of a session that is one node of a cluster: the cluster, and this node's place in it."""

    address: str
    """host:port of the head's gateway."""
    endpoint: str
    """host:port of this node's gateway."""
    has_head: bool
    is_detached: bool
    """Started by `dualray start`, to live until `dualray stop`."""
    command: str = START_COMMAND
    """Which command line has started it: `ray stop` ends what `ray start` has started, and nothing else."""
    takes_faults: bool = False
    """Its processes perform faults that they are told: see fault_door.py."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """See the module."""

    directory: Path
    store_directory: Path
    secret: bytes
    config: Config
    seed: int | None
    job_root: str
    """Seed of the driver's root task id."""
    total: Resources
    labels: tuple[tuple[str, str], ...] = ()
    store_bytes: int
    log_to_driver: bool
    """Of a node manager: whether what workers print is sent to drivers; of a driver: whether it shows that."""
    record_directory: Path | None
    has_notes: bool = False
    """Whether what user code does is noted (`init(record=...)`): see processes/run_recorder.py."""
    log_directory: Path | None = None
    """Where the logs are kept, in a directory of the session's name; None: with the session, until it ends."""
    device_names: Names = field(default_factory=dict)
    """Of the node's GPUs and other accelerators, by the kind: see processes/accelerators.py."""
    redis_shards: int = 0
    """Servers of the control plane beside the primary: see control_plane/shards.py."""
    metrics_port: int | None = None
    """Where the node manager serves metrics, at 127.0.0.1; 0: any port that is free; None: it does not."""
    node: NodeID = FIRST_NODE
    cluster: ClusterPlace | None = None
    """None of a session that `init` has made: other nodes do not join it, and nothing listens on the network."""

    def gateway_for(self, address: str) -> Path | None:
        """The gateway through which a process is reached; None for one that is here."""
        if self.cluster is None:
            return None
        home = home_of(address)
        is_here = self.cluster.has_head if home == HEAD else home == self.node
        return None if is_here else self.directory / GATEWAY_FILE

    @property
    def host(self) -> str:
        """This machine's address for the other nodes."""
        return "127.0.0.1" if self.cluster is None else self.cluster.endpoint.rpartition(":")[0]

    def addresses(self) -> dict[str, str]:
        """Where things are; see `dualray.runtime.Runtime.addresses`."""
        return {
            "node_ip_address": self.host,
            "control_plane_address": str(self.redis_socket) if self.cluster is None else self.cluster.address,
            "object_store_address": str(self.store_directory),
            "local_scheduler_address": str(self.sockets / self.node),
            "session_dir": str(self.directory),
        }

    @property
    def sockets(self) -> Path:
        return self.directory / "sockets"

    @property
    def spill_directory(self) -> Path:
        """Where spilled objects lie."""
        if self.config.spill_directory:
            return Path(self.config.spill_directory) / self.directory.name
        return self.directory / "spilled"

    @property
    def notes_directory(self) -> Path:
        """Where processes leave what they have noted of user code, and nodes their trace."""
        return self.directory / "notes"

    @property
    def stacks(self) -> Path:
        return self.directory / "stacks"

    @property
    def redis_directory(self) -> Path:
        return self.directory / "redis"

    @property
    def redis_socket(self) -> Path:
        """The primary's."""
        return self.redis_directory / "redis.sock"

    @property
    def password(self) -> str:
        """The control plane's password, derived from the secret."""
        return password_of(self.secret)

    def log_path(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @property
    def logs(self) -> Path:
        """Where the logs of its processes lie."""
        return self.directory / "logs" if self.log_directory is None else self.log_directory / self.directory.name

    def remove(self) -> None:
        """Delete every file of the session."""
        for directory in (self.store_directory, self.spill_directory, self.directory):
            files.remove_directory(directory)


def password_of(secret: bytes) -> str:
    """The control plane's password, derived from the cluster's secret."""
    return hmac.new(secret, b"control plane", hashlib.sha256).hexdigest()


def create(
    *,
    config: Config,
    seed: int | None,
    job_root: str,
    total: Resources,
    device_names: Names | None = None,
    store_bytes: int,
    log_to_driver: bool,
    labels: tuple[tuple[str, str], ...] = (),
    record_directory: Path | None,
    has_notes: bool = False,
    log_directory: Path | None = None,
    redis_shards: int = 0,
    metrics_port: int | None = None,
    secret: bytes | None = None,
    node: NodeID = FIRST_NODE,
    cluster: ClusterPlace | None = None,
) -> Session:
    """Make the directories and files of a new session; without a secret, one is drawn.

    Raises:
        ValueError: the directory for spilled objects cannot be written.
        OSError: the files cannot be created; then none is left.
    """
    sweep()
    if config.spill_directory:
        config = replace(config, spill_directory=str(Path(config.spill_directory).absolute()))
        _check_spill_directory(Path(config.spill_directory))
        sweep(Path(config.spill_directory))
    directory, store_directory = _make_directories(config.spill_directory)
    session = Session(
        directory=directory,
        store_directory=store_directory,
        secret=secret or secrets.token_hex(32).encode(),
        config=config,
        seed=seed,
        job_root=job_root,
        total=total,
        labels=labels,
        device_names=device_names or {},
        store_bytes=store_bytes,
        log_to_driver=log_to_driver,
        record_directory=record_directory,
        has_notes=has_notes,
        log_directory=log_directory,
        redis_shards=redis_shards,
        metrics_port=metrics_port,
        node=node,
        cluster=cluster,
    )
    try:
        _write_files(session)
    except OSError as error:
        for path in (session.logs, *_spilled_to(config.spill_directory, directory.name), store_directory, directory):
            files.remove_directory(path)
        raise _not_written(error, directory.parent) from error
    return session


def _write_files(session: Session) -> None:
    for path in (session.sockets, session.logs, session.stacks, *((session.notes_directory,) * session.has_notes)):
        files.make_directory(path)
    files.write(session.directory / "secret", session.secret)
    files.write(session.directory / "session.json", json.dumps(_settings_of(session)).encode())


def directory_of_sessions() -> Path:
    """The directory that has the directories of sessions: that of temporary files. Under the name `ray`, RAY_TMPDIR
    names another one, which is made where it is not there."""
    named = os.environ.get(RAYS_VARIABLE) if rays_words() is not None else None
    if not named:
        return Path(tempfile.gettempdir())
    directory = Path(named).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _make_directories(spill_directory: str) -> tuple[Path, Path]:
    """The directories of a new session, all of one new name: its own, and its object store's."""
    mark = _mark_of(os.getpid())
    for _ in range(_NAMES_TRIED_MAX):
        directory = directory_of_sessions() / f"{_PREFIX}{os.getpid()}-{mark}-{secrets.token_hex(3)}"
        shared_memory = SHARED_MEMORY if SHARED_MEMORY.is_dir() else directory
        made: list[Path] = []
        try:
            for path in (directory, shared_memory / directory.name, *_spilled_to(spill_directory, directory.name)):
                files.make_directory(path)
                made.append(path)
        except OSError as error:
            for path in reversed(made):
                files.remove_directory(path)
            if isinstance(error, FileExistsError):  # of another process: try another name
                continue
            raise _not_written(error, directory.parent) from error
        return directory, shared_memory / directory.name
    raise FileExistsError(
        f"dualray could not create a session directory in {directory_of_sessions()} or {SHARED_MEMORY}: all "
        f"{_NAMES_TRIED_MAX} names that it tried already exist. Set TMPDIR to a directory of your own"
    )


def _not_written(error: OSError, parent: Path) -> OSError:
    return OSError(
        error.errno,
        f"{error.strerror}: dualray could not create the files of a session in {parent}, /dev/shm or the spill "
        "directory. Free space there, or set TMPDIR to another directory",
        error.filename,
    )


def _spilled_to(spill_directory: str, name: str) -> tuple[Path, ...]:
    return (Path(spill_directory) / name,) if spill_directory else ()


def _settings_of(session: Session) -> dict[str, Any]:
    """What other processes of the session read: all but its directory and its secret, as JSON takes it."""
    record, logs, cluster = session.record_directory, session.log_directory, session.cluster
    return {
        "store_directory": str(session.store_directory),
        "config": asdict(session.config),
        "seed": session.seed,
        "job_root": session.job_root,
        "total": session.total.units,
        "labels": session.labels,
        "device_names": session.device_names,
        "store_bytes": session.store_bytes,
        "log_to_driver": session.log_to_driver,
        "record_directory": str(record) if record is not None else None,
        "has_notes": session.has_notes,
        "log_directory": str(logs) if logs is not None else None,
        "redis_shards": session.redis_shards,
        "metrics_port": session.metrics_port,
        "node": session.node,
        "cluster": asdict(cluster) if cluster is not None else None,
    }


def load(directory: Path) -> Session:
    """The session that another process of it has made."""
    settings: dict[str, Any] = json.loads((directory / "session.json").read_bytes())
    record, logs = settings.pop("record_directory"), settings.pop("log_directory")
    cluster = settings.pop("cluster")
    return Session(
        directory=directory,
        store_directory=Path(settings.pop("store_directory")),
        secret=(directory / "secret").read_bytes(),
        config=Config(**settings.pop("config")),
        total=Resources(tuple((name, amount) for name, amount in settings.pop("total"))),
        labels=tuple((key, value) for key, value in settings.pop("labels")),
        record_directory=Path(record) if record is not None else None,
        log_directory=Path(logs) if logs is not None else None,
        cluster=ClusterPlace(**cluster) if cluster is not None else None,
        **settings,
    )


def shared_memory_free_bytes() -> int:
    """What the file system that holds the object stores has free."""
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    return shutil.disk_usage(place).free


def _check_spill_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ValueError(
            f"limits: spill_directory={str(directory)!r} cannot be written ({error.strerror}); give a directory on "
            "a disk with free space, or leave out spill_directory to spill into the session's directory"
        ) from error


def running() -> list[Session]:
    """The sessions of this user on this machine that are nodes of a cluster and whose founder lives, oldest first."""
    return [session for session in all_running() if session.cluster is not None]


def started_by(command: str) -> list[Session]:
    """Those among them that a command line has started, and that have joined their cluster."""
    return [
        session
        for session in running()
        if session.cluster is not None
        and session.cluster.is_detached
        and session.cluster.command == command
        and (session.directory / JOINED_FILE).exists()
    ]


def all_running() -> list[Session]:
    """The sessions of this user on this machine whose founder lives, oldest first."""
    found = []
    for directory in files.own_directories(directory_of_sessions(), _PREFIX):
        if founder_of(directory) is None:
            continue
        try:
            session = load(directory)
            made_ns = (directory / "session.json").stat().st_mtime_ns
        except (OSError, ValueError, TypeError, KeyError):  # it is being made, or removed
            continue
        found.append((made_ns, str(directory), session))
    return [session for _, _, session in sorted(found, key=lambda entry: entry[:2])]


def founder_of(directory: Path) -> int | None:
    """The pid of the process that made a session, while it lives."""
    founder = _founder_in(directory.name)
    if founder is None:
        return None
    pid, mark = founder
    return pid if _is_alive(pid) and mark in ("", _mark_of(pid)) else None


def end_founder(directory: Path, number: int) -> bool:
    """Send a signal to the process that made a session, if it lives, and never to another one that has its pid."""
    founder = _founder_in(directory.name)
    if founder is None or not founder[1]:  # of an earlier version: who it was cannot be told any more
        return False
    try:
        process = os.pidfd_open(founder[0])
    except OSError:
        return False
    try:
        if founder_of(directory) is None:  # looked at after the descriptor: it is this process's, or nobody's
            return False
        signal.pidfd_send_signal(process, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(process)
    return True


def _founder_in(name: str) -> tuple[int, str] | None:
    """(pid, mark) in the name of a session's directory; None when it is none. Earlier versions had no mark."""
    pid, *rest = name.removeprefix(_PREFIX).split("-")
    if not (name.startswith(_PREFIX) and pid.isdigit() and rest):
        return None
    return int(pid), rest[0] if len(rest) > 1 else ""


def _mark_of(pid: int) -> str:
    """Which of the processes that have had this pid it is; "?" when there is none."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:
        return "?"
    if state in (b"Z", b"X"):  # it has ended, and nobody has asked how
        return "?"
    return hashlib.blake2b(boot + rest[18], digest_size=3).hexdigest()


def sweep(*parents: Path) -> None:
    """Remove what sessions of this user have left whose driver and head were killed; `parents` hold their directories,
    by default those for temporary files and for shared memory."""
    for parent in parents or (directory_of_sessions(), SHARED_MEMORY):
        for path in files.own_directories(parent, _PREFIX):
            if _founder_in(path.name) is not None and founder_of(path) is None:
                files.remove_directory(path)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
