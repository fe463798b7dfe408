"""The faults that a node's daemon performs: those of the network, and a machine that is off for a while.

Orders come through the door of fault_door.py, on the gateway's loop:

    network    the conditions of all links from now on (conditions.py)
    off        the node's processes are about to be killed; the machine stays off until `on`
    on         it boots: the same node, in its next incarnation, with what lay in its object store if `keep` says so
"""

from __future__ import annotations

import threading

from dualray.real.net.conditions import LinkConditions
from dualray.real.net.fault_door import GATEWAY_DOOR, Answer, FaultDoor
from dualray.real.net.loop import Loop
from dualray.real.session.session import Session


class NodeFaults:
    """See the module.

    Attributes:
        conditions: of the links, for the gateway.
        is_off: set while the machine is off.
        keeps_store: the next life finds the object store of the last one.
    """

    def __init__(self, loop: Loop, session: Session) -> None:
        self.conditions = LinkConditions(session.seed or 0)
        self.is_off = threading.Event()
        self.keeps_store = False
        self._door = FaultDoor(loop, session.directory / GATEWAY_DOOR, self._perform)

    def close(self) -> None:
        """Take no more orders. Loop's thread."""
        self._door.close()

    def _perform(self, order: Answer) -> Answer:
        match order["op"]:
            case "network":
                self.conditions.replace(order["parted"], order["links"])
            case "off":
                self.is_off.set()
            case "on":
                self.keeps_store = bool(order["keep"])
                self.is_off.clear()
            case op:
                raise ValueError(f"the daemon of a node cannot perform the fault {op!r}")
        return {}
