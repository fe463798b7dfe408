from __future__ import annotations

import dualray as ray
from dualray.report.proof import check_directory
from dualray.util.placement_group import placement_group, remove_placement_group
from dualray.util.queue import Queue
from dualray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from dualray.util.state import list_tasks
from tests.conformance.support import get


def test_groups_labels_promises_and_questions_can_be_decided_again(start, tmp_path):
    log = tmp_path / "log"
    start(num_cpus=3, num_gpus=1, labels={"zone": "a"}, decision_log=log)

    @ray.remote
    def echo(value):
        return value

    group = placement_group([{"CPU": 1, "GPU": 0.5}, {"CPU": 1}])
    inside = echo.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group))
    assert get([inside.remote(value) for value in range(10)]) == list(range(10))
    queue = Queue(actor_options={"num_cpus": 0})
    taken = ray.remote(queue.get).options(label_selector={"zone": "a"}).remote()
    queue.put("item")
    assert get(taken) == "item"
    assert list_tasks().total >= 10
    remove_placement_group(group)
    queue.shutdown()
    ray.shutdown()
    proof = check_directory(log)
    assert proof.is_exact, str(proof)
    assert proof.matched > 20
