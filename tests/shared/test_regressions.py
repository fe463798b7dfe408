"""Bugs that exploration has found, each as the shortest list of events that showed it."""

from __future__ import annotations

from dualray.shared.model.events import NodeJoined
from tests.shared.builders import HeadStepper, cpus, info


def test_a_new_life_of_a_node_may_settle_what_was_placed_on_the_last_one():
    """The head was away while a node rebooted: what it had placed on the old life reached the new one, and was settled
    there. The head had placed it elsewhere by then, and fell over the report (KeyError)."""
    head = HeadStepper(info("node-0", cpus(1)))
    head.ask(request="driver-1#7")
    head(NodeJoined(info=info("node-1", cpus(1))))
    head(NodeJoined(info=info("node-0", cpus(0), incarnation=1)))
    assert list(head.machine.scheduler.views["node-1"].placed) == ["driver-1#7"]
    head.report("node-0", cpus(0), "driver-1#7", incarnation=1)
    head.machine.check_invariants()
    assert list(head.machine.scheduler.views["node-1"].placed) == ["driver-1#7"]
