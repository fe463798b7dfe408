"""Bugs of the machine that scales clusters, planted one at a time, for exploration of `growing_swarm` to find.

Those of its policy are in scaling.py.
"""

from __future__ import annotations

from tests.planted.bugs import MACHINES, PlantedBug
from tests.planted.tree import Change

AUTOSCALER = f"{MACHINES}/autoscaler/autoscaler.py"
PACKING = "dualray/shared/policies/bin_packing.py"


def _bug(name: str, what: str, old: str, new: str, path: str = AUTOSCALER) -> PlantedBug:
    change = Change(path=path, old=old, new=new)
    return PlantedBug(name=name, what=what, change=change, scenario="growing_swarm", seeds=300)


SCALING_BUGS: tuple[PlantedBug, ...] = (
    _bug(
        "drain not forgotten",
        "after the head process has stopped the drain of a node, it still counts the node as leaving",
        '"""A node that was told to leave stays."""\n        self.leaving.pop(node, None)\n',
        '"""A node that was told to leave stays."""\n',
    ),
    _bug(
        "id launched twice",
        "two decisions of the autoscaler give the same ids to launched nodes",
        "        self.launched_count += count\n",
        "        self.launched_count += count - 1\n",
    ),
    _bug(
        "half a gang",
        "the head process launches some nodes of a placement group although it cannot launch all of them",
        "            self.places, self.counts = before, counts\n            return False\n",
        "            return False\n",
        PACKING,
    ),
    _bug(
        "request that stays",
        "the head process keeps a request for nodes after the program has withdrawn the request",
        "            self.requested.pop(process, None)\n        self.look()\n",
        "            self.look()\n",
    ),
    _bug(
        "request forgotten",
        "the death of any process ends the requests for nodes of all processes",
        "for process in [process for process in self.requested if is_dead(process)]:",
        "for process in list(self.requested):",
    ),
    _bug(
        "machine not given back",
        "the machine of a dead node keeps running, and costs money",
        "            self.out.add(TerminateNode(launch_id=launch_id, node=info.node))\n",
        "",
    ),
    _bug(
        "late machine not given back",
        "a machine whose node did not join in time keeps running, and costs money",
        "                self.out.add(TerminateNode(launch_id=launch.launch_id))\n",
        "",
    ),
    _bug(
        "use not noted",
        "a node's report of running tasks does not restart the node's idle timeout",
        'it was in use until now."""\n        self.last_use_ns[node] = self.out.now_ns\n',
        'it was in use until now."""\n',
    ),
    _bug(
        "launches not counted",
        "the head process launches nodes again that are already starting",
        "            if launch.state is LaunchState.REQUESTED:\n                spec = specs[launch.group]\n",
        "            if launch.state is LaunchState.FAILED:\n                spec = specs[launch.group]\n",
    ),
)
