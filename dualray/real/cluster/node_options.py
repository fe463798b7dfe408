"""What the daemon of a node is started with."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any, Final

from dualray.real.session.session import START_COMMAND

START_TIMEOUT_S: Final = 60.0
"""So long a node has to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What a daemon is started with: JSON on its command line. The secret comes through its standard input."""

    address: str | None
    """host:port of the head to join; None: this is the head."""
    node_ip: str
    """Where this node listens, and how others reach it."""
    port: int
    """Of the gateway; 0: any that is free."""
    total: list[tuple[str, int]]
    """The node's resources, in units."""
    labels: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    device_names: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Of its GPUs and other accelerators, by the kind: see processes/accelerators.py."""
    store_bytes: int
    config: dict[str, Any]
    """Limits; of the head only."""
    seed: int | None = None
    job_root: str = ""
    record_directory: str | None = None
    log_to_driver: bool = True
    redis_shards: int = 0
    """Of the control plane; of the head only."""
    provider: dict[str, Any] | None = None
    """Who starts further nodes: what `Growth.launch_plan` says; of the head only."""
    metrics_port: int | None = None
    is_detached: bool = True
    command: str = START_COMMAND
    """Which command line starts it: see `ClusterPlace`."""
    takes_faults: bool = False
    """Its processes perform faults that they are told: see fault_door.py."""
    tls: bool | None = None
    """Whether connections to other machines are encrypted; None: as for their addresses (encryption.py)."""
    tls_files: tuple[str, str, str] | None = None
    """The user's own certificate, its key, and whom it trusts; None: the cluster's."""
    status_fd: int
    lifeline_fd: int | None = None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))
