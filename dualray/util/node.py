"""Questions about the node that the caller runs on."""

from __future__ import annotations

from dualray import runtime


def get_node_ip_address() -> str:
    """The IP address of this node, as the other nodes know it.

    127.0.0.1 where the cluster is on this machine only; in sim mode an address of 10.0.0.0/8 of the virtual node's own.

    Before `init`, or with a verb's own cluster not yet started, it is 127.0.0.1, which a plain `init()` gives its node.
    """
    here = runtime.current_or_none()
    return "127.0.0.1" if here is None else here.verbs.ip_address
