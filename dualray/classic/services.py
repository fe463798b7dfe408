"""`ray.services`, as far as programs used it: where a process runs."""

from dualray import runtime


def get_node_ip_address() -> str:
    """The address of the node that this process runs on: 127.0.0.1 in a cluster that `init` has started, the address
    that was given to `dualray start --node-ip` in others, 10.x.y.z on virtual nodes.

    Raises:
        NotInitializedError: before `init`.
    """
    return runtime.current("get_node_ip_address").addresses()["node_ip_address"]


__all__ = ["get_node_ip_address"]
