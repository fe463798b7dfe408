from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dualray as ray
from dualray.report.explain import Story, Teller
from dualray.report.find import find_id
from dualray.report.histories import Lives
from dualray.report.record import Record, read_record
from dualray.report.state import rows_of_record
from dualray.shared.proof.trace import TraceKind
from tests.report.support import MIB, simulate, two_steps


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """A run in which a node dies with objects that are needed again."""
    log = tmp_path_factory.mktemp("log")
    simulate(lambda: two_steps(10), log, faults=["kill node-2 when digest starts 5"])
    return Lives(read_record(log))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """A run whose stores are too small for what it makes."""

    @ray.remote(max_retries=-1)
    def make(number: int) -> Any:
        return np.full(MIB // 8, float(number))

    @ray.remote(max_retries=-1)
    def look(array: Any) -> float:
        return float(array[0])

    log = tmp_path_factory.mktemp("full")
    limits = {"eviction_policy": "lru"}
    ray.init(mode="sim", nodes=2, num_cpus=2, object_store_memory=4 * MIB, decision_log=log, limits=limits)
    try:
        made = [make.remote(number) for number in range(16)]
        assert [ray.get(look.remote(array)) for array in made] == [float(number) for number in range(16)]
    finally:
        ray.shutdown()
    return Lives(read_record(log))


def words(story: Story) -> str:
    return "\n".join(each for line in story.lines for each in (line.text, *line.details))


def retried(lives: Lives, cause: str) -> Iterator[str]:
    for task in lives.tasks.values():
        if any(attempt.cause == cause for attempt in task.attempts.values()):
            yield task.task


def test_task_tells_its_way_from_submission_to_result(lives: Lives):
    subject = next(task.task for task in lives.tasks.values() if task.name == "augment")
    story = Teller(lives).tell(subject)
    told = words(story)
    assert story.title == f"augment, task {subject[:8]}"
    for part in (
        "driver-1 submits the task.",
        "the task requests 1 CPU",
        "scheduling strategy SPREAD",
        "(result of load)",
        "driver-1 asks its node for",
        "its scheduling strategy is SPREAD: the head decides",
        "The head chooses node-",
        "(chosen): ",
        "grants a lease",
        "pushes attempt 0 to",
        "Attempt 0 starts on",
        "Attempt 0 returns after",
        "The result of the task is object",
    ):
        assert part in told, part
    assert [line.time_ns for line in story.lines] == sorted(line.time_ns or 0 for line in story.lines)


def test_every_choice_of_the_head_names_as_best_the_node_that_it_chose(lives: Lives):
    choices = [choice for asked in lives.replayed.asked.values() for choice in asked.placed]
    assert len(choices) >= 10
    for choice in choices:
        assert choice.candidates[0].node == choice.answer.node
        assert choice.candidates[0].rank is not None
        assert set(choice.free) == {score.node for score in choice.candidates}


def test_every_grant_and_placement_that_the_trace_shows_is_explained(lives: Lives):
    teller = Teller(lives)
    for task in lives.tasks.values():
        told = words(teller.tell(task.task))
        for attempt in task.attempts.values():
            if attempt.started_ns is not None:
                assert f"on worker {attempt.worker}" in told
                assert f"Attempt {attempt.number} starts on {attempt.worker}" in told
        for event in lives.record.events:
            if event.kind is TraceKind.TASK_RETRIED and event.subject == task.task:
                assert f"as attempt {event.amount}: {event.other}" in told


def test_reconstruction_says_what_was_missed_and_what_runs_again(lives: Lives):
    teller = Teller(lives)
    again = list(retried(lives, "reconstruction"))
    assert again
    for subject in again:
        assert "was needed, and no copy was left" in words(teller.tell(subject))
        told = words(teller.tell(subject + "0" * 8))
        if lives.tasks[subject].name == "load":
            assert re.search(
                r"The object's task will run again, as attempt 1, because object [0-9a-f]{8}:0 is computed", told
            )
        else:
            assert re.search(r"the head knows no copy \(\d+ lost so far\), so the head asks the owner, driver-1", told)
            assert f"task {subject[:8]} (augment) runs again, as attempt 1: reconstruction" in told


def test_retry_says_who_died(lives: Lives):
    for subject in retried(lives, "retry"):
        told = words(Teller(lives).tell(subject))
        assert "because the head declared node-2 dead" in told or "because worker node-2/w" in told


def test_object_tells_where_it_travelled_and_why(lives: Lives):
    moved = next(thing for thing in lives.objects.values() if any(move.ended_ns for move in thing.moves))
    told = words(Teller(lives).tell(moved.object_id))
    assert "writes the object into the store of its node" in told
    assert "asks the head where the object is." in told
    assert re.search(r"node-\d asks node-\d to send the object", told)
    assert re.search(r"The object has arrived on node-\d: [\d,]+ bytes from node-\d in .* MB/s", told)


def test_eviction_says_what_the_room_was_for_and_what_the_policy_was_offered(full: Lives):
    evicted = [event for event in full.record.events if event.kind is TraceKind.OBJECT_EVICTED]
    assert evicted
    teller = Teller(full)
    for event in evicted:
        told = words(teller.tell(event.subject))
        assert f"{event.process} evicts the object, to make room." in told
        assert re.search(r"LruEviction was offered \d+ unused objects; the evicted object was number \d+", told)
        assert re.search(r"the store held [\d,]+ of 4,194,304 bytes", told)
        assert "room was needed because" in told


def test_replay_sees_each_eviction_at_its_place_among_what_was_offered(full: Lives):
    count = 0
    for object_id, evictions in full.replayed.evictions.items():
        for eviction in evictions:
            count += 1
            assert 1 <= eviction.position <= eviction.candidates, object_id
    assert count == sum(event.kind is TraceKind.OBJECT_EVICTED for event in full.record.events)


def test_without_logs_the_moments_are_told(lives: Lives):
    bare = Lives(Record(events=lives.record.events))
    subject = next(iter(bare.tasks))
    told = words(Teller(bare).tell(subject))
    assert "driver-1 submits the task." in told
    assert "returns after" in told


def test_id_is_found_by_its_beginning_and_as_errors_write_it(lives: Lives):
    task = next(iter(lives.tasks))
    assert find_id(lives, task) == task
    assert find_id(lives, f" {task[:9].upper()} ") == task
    assert find_id(lives, f"{task[:8]}:0") == task + "0" * 8


@pytest.mark.parametrize("wanted", ["", "zzzz"])
def test_id_that_there_is_not(lives: Lives, wanted: str):
    with pytest.raises(ValueError, match=r"the id is empty|its first tasks are [0-9a-f]{32} "):
        find_id(lives, wanted)


def test_unknown_id_names_the_nearest(lives: Lives):
    task = next(iter(lives.tasks))
    wrong = task[:7] + ("0" if task[7] != "0" else "1")
    with pytest.raises(ValueError, match=rf"'{wrong}', or an id that begins with '{wrong}'; the nearest are .*{task}"):
        find_id(lives, wrong)


def test_name_of_a_function_lists_its_tasks(lives: Lives):
    with pytest.raises(
        ValueError,
        match=r"'digest' is the name of 20 tasks; give one of these ids:\n  [0-9a-f]{8}  returned on node-\d/w\d, 2 at",
    ):
        find_id(lives, "digest")


def test_actor_tells_of_its_restart_and_its_calls_of_where_they_went(tmp_path: Path):
    @ray.remote(max_restarts=1, max_task_retries=1)
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    def count() -> Any:
        actor: Any = Counter
        counter = actor.remote()
        return ray.get([counter.add.remote() for _ in range(3)])

    simulate(count, tmp_path, faults=["kill actor Counter when Counter.add starts 3"])
    lives = Lives(read_record(tmp_path))
    teller = Teller(lives)
    made = words(teller.tell(next(task.task for task in lives.tasks.values() if task.name == "Counter")))
    assert "the constructor of an actor, for which the head chooses a node" in made
    assert made.count("The head chooses node-") == 2
    assert "The actor is lost with its worker node-" in made
    assert "fault: kill actor" in made
    assert "The head restarts the actor, as attempt 1." in made
    last = words(teller.tell([task.task for task in lives.tasks.values() if task.name == "Counter.add"][-1]))
    assert "which goes to the actor's worker" in last
    assert "grants a lease" not in last
    assert "fault: kill actor" in last
    assert "because its actor was RESTARTING" in last


def test_a_wait_for_a_node_names_who_holds_it_and_ids_of_small_results_can_be_given_back(tmp_path: Path):
    @ray.remote
    class Counter:
        def add(self) -> int:
            return 1

    @ray.remote(duration=1.0)
    def slow(counter: Any) -> int:
        result: int = ray.get(counter.add.remote())
        return result

    def program() -> int:
        actor: Any = Counter
        counter = actor.options(name="tally").remote()
        return sum(ray.get([slow.remote(counter) for _ in range(6)]))

    simulate(program, tmp_path, nodes=1)
    lives = Lives(read_record(tmp_path))
    teller = Teller(lives)
    assert find_id(lives, "tally") == find_id(lives, "Counter")
    made = words(teller.tell(find_id(lives, "Counter")))
    assert "0 of 2 CPU free, and it needs 1; held by 2 x slow" in made
    last = [task.task for task in lives.tasks.values() if task.name == "slow"][-1]
    told = words(teller.tell(last))
    assert "(handle of Counter)" in told
    assert "can run from now on" not in told, "nothing waits for a handle"
    waited = re.search(r"in get or wait for (\S+) \(result of Counter.add\)", told)
    assert waited is not None
    assert lives.tasks[find_id(lives, waited[1])].name == "Counter.add"


def test_a_task_without_a_worker_tells_why(tmp_path: Path):
    @ray.remote(num_cpus=3)
    def big() -> int:
        return 1

    @ray.remote
    def blocked() -> int:
        return 1

    @ray.remote
    def after(number: int) -> int:
        return number

    @ray.remote(num_cpus=2)
    class Holder:
        def ready(self) -> bool:
            return True

    ray.init(mode="sim", nodes=1, num_cpus=2, decision_log=tmp_path)
    try:
        with pytest.raises(ray.exceptions.TaskUnschedulableError):
            ray.get(big.remote())
        holder = Holder.remote()  # type: ignore[attr-defined]  # the decorator's
        assert ray.get(holder.ready.remote())
        waiting = after.remote(blocked.remote())
        assert ray.wait([waiting], timeout=1)[0] == []
    finally:
        ray.shutdown()
    lives = Lives(read_record(tmp_path))
    ids = {life.name: life.task for life in lives.tasks.values()}
    told = {name: words(Teller(lives).tell(ids[name])) for name in ("big", "blocked", "after")}
    assert "no node could ever take it" in told["big"]
    assert "The task fails without a worker.\nbig cannot be scheduled: it demands 3 CPU" in told["big"]
    assert "0 of 2 CPU free, and it needs 1; held by 1 x Holder" in told["blocked"]
    assert told["blocked"].endswith("At the end of the run the task waits for a worker.")
    assert words(Teller(lives, goes_on=True).tell(ids["blocked"])).endswith("Now the task waits for a worker.")
    ready = f"waits for object {ids['blocked'][:8]}:0 (result of blocked), which is not ready."
    assert told["after"].endswith(ready)
    rows = {row["name"]: (row["state"], row["error_type"]) for row in rows_of_record(lives.record, "tasks")}
    assert rows["big"] == ("FAILED", "TASK_UNSCHEDULABLE")
    assert rows["blocked"] == rows["after"] == ("PENDING_NODE_ASSIGNMENT", "")


def test_an_attempt_that_has_not_ended_is_said_to_run(tmp_path: Path) -> None:
    @ray.remote(duration=5.0)
    def long() -> int:
        return 1

    ray.init(mode="sim", nodes=1, num_cpus=1, decision_log=tmp_path)
    try:
        assert ray.wait([long.remote()], timeout=1)[0] == []
    finally:
        ray.shutdown()
    lives = Lives(read_record(tmp_path))
    [subject] = lives.tasks
    assert re.search(r"Attempt 0 had run for \S+ m?s at the end of the run\.$", words(Teller(lives).tell(subject)))
    assert re.search(r"Attempt 0 has run for \S+ m?s so far\.$", words(Teller(lives, goes_on=True).tell(subject)))


def test_a_lease_that_is_older_than_the_task_is_said_to_be_of_earlier_tasks(tmp_path: Path) -> None:
    @ray.remote
    def add(number: int) -> int:
        return number + 1

    ray.init(mode="sim", nodes=1, num_cpus=1, decision_log=tmp_path)
    try:
        assert [ray.get(add.remote(number)) for number in (1, 2)] == [2, 3]
    finally:
        ray.shutdown()
    lives = Lives(read_record(tmp_path))
    first, second = (
        words(Teller(lives).tell(task)) for task in sorted(lives.tasks, key=lambda each: lives.tasks[each].submitted_ns)
    )
    said = (
        "asks its node for a worker for earlier tasks with the same demands; this task later uses one of their leases."
    )
    assert said in second and said not in first
