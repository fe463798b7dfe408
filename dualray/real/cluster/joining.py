"""The session through which a driver joins: that of a node of a cluster, or the one that a program has made.

A cluster's control plane gives out the numbers of drivers (address.py). A program's own may start again with empty
tables: there, a directory for each number says that it is taken.
"""

from __future__ import annotations

import itertools
import socket
from pathlib import Path

import psutil

from dualray.exceptions import DualrayError
from dualray.real import files
from dualray.real.net.addresses import parse_endpoint
from dualray.real.session import session as sessions
from dualray.real.session.session import Session

__all__ = ["find_session", "is_at", "is_of_ancestor", "next_beside_the_first"]


def find_session(address: str) -> Session:
    """The session, on this machine, of a node of the cluster at `address`: "host:port", the directory of a session that
    a program has started with `init()`, a path in it, or "auto". "auto" is the session of an ancestor of this process,
    else the cluster that `dualray start` has started, else that of any program.

    Raises:
        DualrayError: there is none, or "auto" fits several clusters.
    """
    if address.startswith("/"):
        return _session_at(Path(address))
    running = [session for session in sessions.running() if (session.directory / sessions.JOINED_FILE).exists()]
    if address == "auto" and (found := _sessions_of_programs(are_of_ancestors=bool(running))):
        return _only(found)
    if address == "auto":
        clusters = sorted({_address_of(session) for session in running})
        if len(clusters) > 1:
            raise DualrayError(
                f"address='auto': several clusters run on this machine: {', '.join(clusters)}. Pass the address of "
                "one cluster."
            )
        fitting = running
    else:
        fitting = [session for session in running if is_at(session, parse_endpoint(address, "address"))]
    if not fitting:
        if address == "auto":
            raise DualrayError(
                "address='auto': no cluster runs on this machine for this user. First run `dualray start --head`, or a "
                "program that calls init(), on this machine"
            )
        raise DualrayError(
            f"no node of the cluster at {address} runs on this machine for this user. First run "
            f"`dualray start --address {address}` on this machine"
        )
    return min(fitting, key=lambda session: (not _has_head(session), int(session.node.removeprefix("node-"))))


def _session_at(path: Path) -> Session:
    for session in sessions.all_running():
        if path.resolve().is_relative_to(session.directory.resolve()):
            return session
    raise DualrayError(
        f"no running cluster of this user has the session directory {path}: the cluster has ended, or its session "
        "was on another machine"
    )


def _sessions_of_programs(*, are_of_ancestors: bool) -> list[Session]:
    """Those that programs on this machine have made with `init()`; where there is one of an ancestor, that alone."""
    found = [session for session in sessions.all_running() if session.cluster is None and _is_up(session)]
    family = [session for session in found if is_of_ancestor(session)]
    return family if family or are_of_ancestors else found


def _only(found: list[Session]) -> Session:
    if len(found) > 1:
        places = ", ".join(str(session.directory) for session in found)
        raise DualrayError(
            f"address='auto': several clusters run on this machine: {places}. Pass the directory of one cluster."
        )
    return found[0]


def _is_up(session: Session) -> bool:
    return (session.directory / sessions.CONTROL_PLANE_FILE).exists()


def is_of_ancestor(session: Session) -> bool:
    """Whether an ancestor of this process has made the session."""
    return sessions.founder_of(session.directory) in {process.pid for process in psutil.Process().parents()}


def _address_of(session: Session) -> str:
    return session.cluster.address if session.cluster is not None else ""


def _has_head(session: Session) -> bool:
    return session.cluster is not None and session.cluster.has_head


def is_at(session: Session, endpoint: tuple[str, int]) -> bool:
    """Whether a session is a node of the cluster at host and port."""
    host, port = parse_endpoint(_address_of(session), "the cluster's address")
    if port != endpoint[1]:
        return False
    wanted, ours = _ips(endpoint[0]), _ips(host)
    is_loopback = any(ip == "::1" or ip.startswith("127.") for ip in wanted)
    return bool(wanted & ours) or (is_loopback and _has_head(session))


def _ips(host: str) -> set[str]:
    try:
        return {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return {host}


def next_beside_the_first(session: Session) -> int:
    """A number for a driver that joins a session which a program has made; the program itself is the first.

    Raises:
        DualrayError: the session is ending.
    """
    for number in itertools.count(2):
        try:
            files.make_directory(session.directory / f"driver-{number}")
        except FileExistsError:
            continue
        except OSError as error:
            raise DualrayError(f"the cluster at {session.directory} is ending: {error.strerror}") from error
        return number
    raise AssertionError("never reached")
