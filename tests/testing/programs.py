"""Programs for the tests of exploration: one that hangs, some that depend on PYTHONHASHSEED or on their process."""

import os

import dualray
from dualray.util.placement_group import placement_group

RUNS: list[str] = []


@dualray.remote
def named(number):
    return number


def depends_on_the_hash_seed():
    names = {f"task-{number}" for number in range(20)}
    return sorted(dualray.get([named.options(name=name).remote(len(name)) for name in names]))


def depends_on_the_hash_seed_in_its_result_only():
    return dualray.get(named.remote(0)), list({"a", "b", "c", "d", "e", "f"})


def depends_on_the_runs_before():
    RUNS.append("one more")
    return dualray.get(named.remote(len(RUNS)))


def spins_under_a_hash_seed():
    dualray.get(named.remote(0))
    while os.environ["PYTHONHASHSEED"] == "2":
        pass


def spins():
    dualray.get(named.remote(0))
    while True:
        pass


def keeps_a_promise():
    """Gives another result when a task has been tried twice."""
    attempt = dualray.remote(lambda: dualray.get_runtime_context().get_attempt()).options(
        name="attempt", max_retries=-1
    )
    return sum(dualray.get([attempt.remote() for _ in range(6)]))


def makes_a_group_late():
    """Wants three nodes, when some may be gone."""
    dualray.get([named.options(duration=0.1).remote(number) for number in range(24)])
    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    dualray.get(group.ready())
    return 0
