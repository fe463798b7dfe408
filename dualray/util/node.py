"""`get_node_ip_address`, which returns the address of the caller's node."""

from __future__ import annotations

from dualray import runtime


def get_node_ip_address() -> str:
    """Return the IP address at which other nodes reach this node.

    If the cluster runs only on this machine, the address is 127.0.0.1. In sim mode, each virtual node has its own
    address in 10.0.0.0/8.

    Before `init`, or with a verb's own cluster not yet started, it is 127.0.0.1, which a plain `init()` gives its node.
    """
    here = runtime.current_or_none()
    return "127.0.0.1" if here is None else here.verbs.ip_address
