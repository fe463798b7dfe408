"""What exploration has found in the machines: the smallest scenario of each.

Those that are not mended yet are expected to fail, strictly: whoever mends one takes it out of `OPEN`, and it stays as
a test.
"""

import pytest

from dualray.shared.scenario.file import parse_scenario
from dualray.testing.expectations import judge
from dualray.testing.run import run_scenario

FOUND = {
    "several results": """
# Two results of one task are evicted. While it runs again for one, the other is wanted: "has no attempt left", though
# its tries have no end and the attempt that is under way makes both. (When that was mended it showed "hold and wait".)
name: several-results
cluster: {nodes: 4, cpus: 4, object_store: 24MiB}
workload: {generate: shuffle, kwargs: {maps: 24, reduces: 12, seconds: 0.2, size: 500000}}
""",
    "never sealed": """
# A worker dies between sealing its result and the node's hearing of it; its owner has heard that the task is finished.
# The head asks the owner for a copy that there never was (losses=0), and the owner waits: nothing happens any more.
name: never-sealed
cluster: {nodes: 5, cpus: 2}
workload: {generate: mixed, kwargs: {tasks: 2, seconds: 0.5, size: 112430}}
faults: [kill worker when link ends 1]
""",
    "never sealed, twice": """
# The attempt that makes it again is lost in the same way: the head has been answered once and does not ask again.
name: never-sealed-twice
cluster: {nodes: [{object_store: 64MiB}, {count: 4, gpus: 2, object_store: 24MiB}]}
workload: {generate: bag_of_tasks, kwargs: {tasks: 40, seconds: 0.6, gpus: 1, size: 112455, spread: 0.5}}
faults: [kill worker when piece ends 1, kill worker when piece ends 38]
""",
    "never sealed by an actor": """
# The same of an actor's result. (When that is mended: a call that is repeated to make a lost result again is put behind
# the calls that wait for that very result, and the actor's order holds it there for ever.)
name: never-sealed-by-an-actor
cluster: {nodes: 4, cpus: 2}
workload: {generate: parameter_server, kwargs: {workers: 1, steps: 1, seconds: 0.3, size: 112406}}
faults: [kill worker when ParameterServer.read ends 1]
""",
    "placed on an earlier life": """
# The head, back again, places requests on a node of which it hears next that it has died and joined anew; what it sent
# comes to the new life. It places them again, and the node served both: more than the head had placed there.
name: placed-on-an-earlier-life
cluster: {nodes: 11}
workload: {generate: bag_of_tasks, kwargs: {tasks: 48}}
faults:
- drain node-7 when piece starts 5 for 0.576s
- restart head when piece starts 5 for 1s
- drain node-10 at 0.1s for 0.778s
""",
    "a bundle on an earlier life": """
# The head asks a node to reserve a bundle; the node has left and joined anew before it hears of that. The head places
# the bundle again, and the new life keeps what it was asked for the earlier one, for ever.
name: a-bundle-on-an-earlier-life
cluster: {nodes: [{}, {cpus: 3, gpus: 2}, {labels: {rack: b}}, {cpus: 1, gpus: 1}]}
workload: {function: "scenarios.swarm_corners:tight"}
faults:
- partition node-2,node-3 when placement_group.ready starts 1 for 5s
- drain node-3 at 2s for 0.134s
""",
    "remembered as parted": """
# Two nodes lose their connection while they cannot reach one another, and the head remembers that for 3,000 s. Nothing
# else is left to happen; still the cluster was said not to have come to rest.
name: remembered-as-parted
cluster: {nodes: 6, object_store: 64MiB, network: {bandwidth: 125MB/s}}
workload: {function: "scenarios.swarm_programs:broadcast", kwargs: {blocks: 1, readers: 8, size: 22499957}}
config: {link_patience_ns: 250_000_000_000}
faults:
- partition node-3,node-5 to node-0 when look starts 8 for 38.804s
""",
    "failed for want of room": """
# A task that is to make a lost object again finds no room for it: the object's error is that a store is full. A node on
# which a task waits for that object took it for one of its own store's, and asked again, and so on without end.
name: failed-for-want-of-room
cluster: {nodes: 4, cpus: 2, object_store: 2MiB}
workload: {generate: mixed, kwargs: {tasks: 12, seconds: 0.3, size: 400000}}
policies: {eviction: spill}
faults: [reboot node-2 at 1.359s for 3.171s, fill node-1 to 0.9 when transfer_started 14 for 10.611s]
expect: {error: {type: ObjectStoreFullError}}
""",
    "hold and wait": """
# Tasks that wait on one node have some of their arguments brought and pinned, and wait for room for the others, which
# those of the next hold: the store is full of arguments of which no task has all. After 10 s a task that has something
# to return is refused.
name: hold-and-wait
cluster: {nodes: 4, cpus: 4, object_store: 16MiB}
workload: {generate: tree_reduce, kwargs: {leaves: 96, fan_in: 4, seconds: 0.2, size: 1000000}}
""",
    "given up again and again": """
# Nothing passes from node-1 and node-2 to node-0. A stage is made there for a task that the driver has given up long
# ago, and whose node still waits for it: its copy was given up, and made again on node-0, eight times in three seconds.
# Each time it went while a task on node-0 needed it. Now a copy that is made again on the same node stays.
name: given-up-again-and-again
cluster: {nodes: 3, cpus: 2, object_store: 1MiB}
workload: {function: "scenarios.swarm_programs:stages", kwargs: {tasks: 4, depth: 2, size: 119994}}
config: {store_wait_ns: 60000000000}
time_limit: 1h
faults:
- reboot node-2 with its store at 0.073s for 0.324s
- reboot node-1 with its store at 0.1s for 1s
- partition node-1,node-2 to node-0 at 0.4s for 71.306s
expect: {same_as_without_faults: true}
""",
}


OPEN: set[str] = set()
LONG = {"several results"}
"""144 MB of results in 96 MB of stores, which evict and make again: some 10 s."""
NOT_MENDED = pytest.mark.xfail(strict=True, raises=AssertionError, reason="found by exploration, not mended yet")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=[NOT_MENDED] * (name in OPEN) + [pytest.mark.slow] * (name in LONG))
        for name, text in FOUND.items()
    ],
)
def test_it_comes_out_as_without_faults(text):
    scenario = parse_scenario(text, "found")
    outcome = run_scenario(scenario)
    assert [verdict for verdict in judge(scenario, outcome) if not verdict.holds] == []
