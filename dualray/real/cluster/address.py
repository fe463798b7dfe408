"""The address of a cluster: how its control plane announces it, and how nodes and drivers find it.

    HGETALL dualray:cluster      config, seed, job_root, record_directory, address, protocol: as the head was started;
                                 nodes, drivers: how many names have been given out
    HGETALL dualray:endpoints    of each node, host:port of its gateway

A name is given out once: `node-3` is the fourth node that ever joined, and a driver's number is the root of its ids.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dualray.exceptions import AuthenticationError, DualrayError
from dualray.input_files import read_bytes, read_pipe
from dualray.real.cluster.encryption import Encryption
from dualray.real.cluster.gateway import RoutedClient
from dualray.real.control_plane.resp import ReplyError, RespClient
from dualray.real.control_plane.shards import SHARDS
from dualray.real.net.addresses import parse_endpoint
from dualray.real.net.frames import Refusal
from dualray.real.net.handshake import PROTOCOL_VERSION as TRANSPORT_VERSION
from dualray.real.session.session import Session
from dualray.shared.model.codec import PROTOCOL_VERSION
from dualray.shared.model.config import Config
from dualray.shared.model.ids import HEAD, NodeID

_CLUSTER = "dualray:cluster"
_ENDPOINTS = "dualray:endpoints"
_PROTOCOL = f"{TRANSPORT_VERSION}.{PROTOCOL_VERSION}"
_REPLY_TIMEOUT_S = 10.0
SECRET_BYTES_MIN = 16
_OPEN_FILES = Path("/dev/fd")  # as in --secret-file <(command)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    """What every node of a cluster has in common."""

    address: str
    config: Config
    seed: int | None
    job_root: str
    record_directory: Path | None
    redis_shards: int = 0


def read_secret(path: Path | None) -> bytes | None:
    """The cluster's secret, from a file or from DUALRAY_SECRET; None when neither is given.

    Raises:
        ValueError: it is shorter than 16 bytes, or the file is missing, or others than its owner may read it.
    """
    if path is not None:
        try:
            mode, source = path.stat().st_mode, str(path)
            secret = (read_pipe(path) if path.parent == _OPEN_FILES else read_bytes(path)).strip()
        except OSError as error:
            raise ValueError(
                f"--secret-file {path} cannot be read: {error.strerror}; give a copy of the secret file. "
                "`dualray start --head` prints the path of the secret file"
            ) from error
        if mode & 0o077:
            raise ValueError(f"{path} can be read by other users: run chmod 600 {path}")
    elif text := os.environ.get("DUALRAY_SECRET"):
        secret, source = text.strip().encode(), "DUALRAY_SECRET"
    else:
        return None
    if len(secret) < SECRET_BYTES_MIN:
        raise ValueError(
            f"the secret in {source} has {len(secret)} bytes, but a secret needs at least {SECRET_BYTES_MIN} bytes"
        )
    return secret


# ---- The tables --------------------------------------------------------------------------------------------------


def publish(client: RespClient, info: ClusterInfo) -> None:
    """The head: say what this cluster is."""
    fields = {
        "address": info.address,
        "config": json.dumps(asdict(info.config)),
        "seed": json.dumps(info.seed),
        "job_root": info.job_root,
        "record_directory": str(info.record_directory or ""),
        "protocol": _PROTOCOL,
    }
    for name, value in fields.items():
        client.call("HSET", _CLUSTER, name, value)


def read_info(client: RespClient) -> ClusterInfo:
    """What this cluster is.

    Raises:
        DualrayError: it is still starting, or speaks another version of the protocol.
    """
    flat = [each.decode() for each in client.call("HGETALL", _CLUSTER)]
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if "protocol" not in fields:
        raise DualrayError("the cluster's head process is still starting; try again in a few seconds")
    if fields["protocol"] != _PROTOCOL:
        raise DualrayError(
            f"the cluster uses version {fields['protocol']} of dualray's protocol, but this process uses version "
            f"{_PROTOCOL}: install the same version of dualray on every machine"
        )
    return ClusterInfo(
        address=fields["address"],
        config=Config(**json.loads(fields["config"])),
        seed=json.loads(fields["seed"]),
        job_root=fields["job_root"],
        record_directory=Path(fields["record_directory"]) if fields["record_directory"] else None,
        redis_shards=client.call("LLEN", SHARDS),
    )


def next_node(client: RespClient) -> NodeID:
    """A name for a node that joins."""
    return NodeID(f"node-{client.call('HINCRBY', _CLUSTER, 'nodes', 1) - 1}")


def set_endpoint(client: RespClient, node: NodeID, endpoint: str) -> None:
    """Say where a node's gateway is."""
    client.call("HSET", _ENDPOINTS, node, endpoint)


def endpoint_of(client: RespClient, node: str) -> tuple[str, int]:
    """Where a node's gateway is; LookupError when no node has this name."""
    found = client.call("HGET", _ENDPOINTS, node)
    if found is None:
        raise LookupError(f"the cluster has no node {node!r}")
    return parse_endpoint(found.decode(), f"the endpoint of {node}")


# ---- Clients -----------------------------------------------------------------------------------------------------


def local_client(session: Session) -> RespClient:
    """A client of the control plane, on a machine that has a session."""
    return RespClient(session.redis_socket, session.password, timeout_s=_REPLY_TIMEOUT_S)


@contextlib.contextmanager
def remote_client(endpoint: tuple[str, int], secret: bytes, encryption: Encryption) -> Iterator[RespClient]:
    """A client of the control plane, through the head's gateway.

    Raises:
        DualrayError: nobody answers at the endpoint.
        AuthenticationError: who answers does not share the secret.
    """
    where = f"{endpoint[0]}:{endpoint[1]}"
    try:
        with RoutedClient(endpoint, secret, encryption, timeout_s=_REPLY_TIMEOUT_S) as client:
            yield client
    except Refusal as refusal:
        raise AuthenticationError(f"the cluster at {where} refuses this process: {refusal}") from refusal
    except OSError as error:
        hint = (
            ""
            if encryption.is_on_for(endpoint[0])
            else "; if the first node was started with --tls, also give --tls to this command"
        )
        raise DualrayError(
            f"no cluster answers at {where}: {error}. Check that `dualray start --head` runs on that machine, and that "
            f"this machine can reach the port{hint}"
        ) from error


# ---- Drivers -----------------------------------------------------------------------------------------------------


def next_driver(session: Session) -> int:
    """A number for a driver that joins, never used before in its cluster.

    Raises:
        DualrayError: the control plane does not answer.
    """
    assert session.cluster is not None
    try:
        with local_client(session) as client:
            return int(client.call("HINCRBY", _CLUSTER, "drivers", 1))
    except (OSError, ReplyError, AuthenticationError) as error:
        raise DualrayError(
            f"the {HEAD} of the cluster at {session.cluster.address} does not answer node {session.node}: {error}"
        ) from error
