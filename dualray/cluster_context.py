"""The context that `init` returns: the addresses of the cluster, and the runtime behind it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from dualray import runtime
from dualray.exceptions import rays_words

DASHBOARD_VARIABLE: Final = "RAY_OVERRIDE_DASHBOARD_URL"


def hosted_dashboard() -> str:
    """Return where somebody hosts a dashboard, as a program for Ray is told; "": nowhere."""
    return os.environ.get(DASHBOARD_VARIABLE, "").rpartition("://")[2] if rays_words() is not None else ""


class ClusterContext(Mapping[str, Any]):
    """A cluster that this process is connected to, as a mapping of its addresses and as a context manager.

        with dualray.init() as context:
            print(context.address_info["node_ip_address"], context["session_dir"])

    The end of the `with` block shuts the cluster down. Attributes that depend on the mode come from the runtime:
    `metrics_address` in real mode, and `cluster` and `now_s` in sim mode.

    Attributes:
        runtime: the object that connects this process to the cluster; see dualray/runtime.py.
        address_info: `address` and `gcs_address` (of the head), `node_ip_address`, `node_id`, `object_store_address`,
            `raylet_socket_name`, `session_dir`, `metrics_export_port` and other addresses that Ray has. An address that
            dualray does not have is None or "". `context["address"]` reads an address, too.
        dashboard_url: "", because a cluster starts no dashboard (use the command `dualray dashboard`). In a program
            that imports `ray`: the address of a hosted dashboard from RAY_OVERRIDE_DASHBOARD_URL, without its scheme.
        python_version, dualray_version: the versions of Python and dualray in this process. `ray_version` is the same
            as `dualray_version`.
    """

    def __init__(self, running: runtime.Runtime, version: str) -> None:
        self.runtime = running
        self.dashboard_url = hosted_dashboard()
        self.python_version = platform.python_version()
        self.dualray_version = self.ray_version = version
        self.ray_commit = ""
        places = running.addresses()
        metrics_address: str | None = getattr(running, "metrics_address", None)
        self.address_info: dict[str, Any] = {
            "node_ip_address": places["node_ip_address"],
            "node_id": running.verbs.context().node_id,
            "address": places["control_plane_address"],
            "gcs_address": places["control_plane_address"],
            "redis_address": None,
            "object_store_address": places["object_store_address"],
            "raylet_socket_name": places["local_scheduler_address"],
            "webui_url": self.dashboard_url,
            "session_dir": places["session_dir"],
            "metrics_export_port": int(metrics_address.rpartition(":")[2]) if metrics_address else None,
            "dashboard_agent_listen_port": None,
        }

    def __getattr__(self, name: str) -> Any:
        if name == "runtime":
            raise AttributeError(name)  # __init__ has not run
        return getattr(self.runtime, name)

    def __getitem__(self, name: str) -> Any:
        return self.address_info[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.address_info)

    def __len__(self) -> int:
        return len(self.address_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterContext) and other.runtime is self.runtime

    def __hash__(self) -> int:
        return id(self.runtime)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Shut the cluster down, if this process is connected to it."""
        if runtime.current_or_none() is self.runtime:
            try:
                self.runtime.shutdown()
            finally:
                runtime.set_current(None)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(mode={self.runtime.mode!r}, address={self.address_info['address']!r}, "
            f"python_version={self.python_version!r}, dualray_version={self.dualray_version!r})"
        )


RayContext = ClusterContext
"""Ray's name for it, which pickles have under the name `ray`."""
