"""The head's directory of names, and actors that outlive who made them. Events in, commands out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    ActorExited,
    ActorFailed,
    ActorKillRequested,
    ActorNameReported,
    ActorNameRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    BorrowAcknowledged,
    BorrowAdded,
    DriverJoined,
    DriverLeft,
    LeasedWorkerDied,
    LeaseGranted,
    TaskFinished,
    TaskPushed,
    WorkerDied,
    WorkerUnwanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID, WaitID, actor_handle_id
from dualray.shared.model.specs import NamedActor
from dualray.shared.model.states import ActorState
from tests.shared.builders import DRIVER, HeadStepper, aid, constructor, error, info, sent, tid

N0 = NodeID("node-0")
OTHER = Address("driver-2")
WORKER = Address("node-0/w1")


@pytest.fixture
def head() -> HeadStepper:
    head = HeadStepper(info("node-0"))
    head(DriverJoined(address=DRIVER, node=N0), DriverJoined(address=OTHER, node=N0, namespace="shop"))
    return head


def ask(head: HeadStepper, name: str, number: int | None = None, **fields: Any) -> ActorNameReported:
    """Ask for a name or, with a number, claim it for that actor."""
    fields = {"requester": DRIVER, "namespace": "", "job": 1, "get_if_exists": False} | fields
    detached = fields.pop("is_detached", False)
    claim = None
    if number is not None:
        spec = constructor(number, owner=fields["requester"], actor_name=name, is_detached=detached)
        assert spec.creates is not None
        claim = NamedActor(spec=spec.creates, template=spec.template, owner=HEAD if detached else spec.owner)
    event = ActorNameRequested(wait_id=WaitID(7), name=name, claim=claim, **fields)
    [answer] = sent(head(event), ActorNameReported, fields["requester"])
    assert answer.wait_id == 7
    return answer


def register(head: HeadStepper, number: int, name: str = "", *, is_detached: bool = False, **options: Any) -> list[Any]:
    return head(ActorRegistered(spec=constructor(number, actor_name=name, is_detached=is_detached, **options)))


def make(head: HeadStepper, number: int, name: str, **options: Any) -> None:
    """An actor that is up."""
    detached = options.get("is_detached", False)
    assert ask(head, name, number, is_detached=detached).is_new
    register(head, number, name, **options)
    lease = LeaseID(f"lease-{number}")
    request = f"actor:{aid(number).hex()}:0"
    [pushed] = sent(
        head(
            LeaseGranted(
                lease_id=lease,
                request_id=request,  # type: ignore[arg-type]
                worker=WORKER,
                node=N0,
                incarnation=0,
            )
        ),
        TaskPushed,
    )
    head(TaskFinished(task_id=pushed.spec.task_id, attempt=0, worker=WORKER, node=N0, results=(), duration_ns=1))


def test_a_claim_gives_the_name_and_says_the_namespace(head):
    answer = ask(head, "a", 1)
    assert answer.is_new
    assert answer.actor is not None
    assert answer.actor.spec.namespace == "job-00000001"
    assert ask(head, "a").actor == answer.actor
    assert ask(head, "a", requester=OTHER, job=2).error is not None
    assert ask(head, "a", 2, requester=OTHER, job=2).actor.spec.namespace == "shop"  # type: ignore[union-attr]


def test_a_name_that_is_taken_and_one_that_is_not_there(head):
    ask(head, "alpha", 1)
    taken = ask(head, "alpha", 2)
    assert taken.error is not None
    assert taken.error.kind is ErrorKind.ACTOR_EXISTS
    assert "'alpha' is already taken" in taken.error.message
    unknown = ask(head, "alpa")
    assert unknown.error is not None
    assert unknown.error.kind is ErrorKind.ACTOR_NOT_FOUND
    assert "Did you mean 'alpha'?" in unknown.error.message


def test_a_claim_that_is_repeated_is_the_same_claim(head):
    first = ask(head, "a", 1)
    assert ask(head, "a", 1) == first


def test_get_if_exists_answers_with_the_one_that_is_there(head):
    first = ask(head, "a", 1)
    second = ask(head, "a", 2, get_if_exists=True)
    assert not second.is_new
    assert second.actor == first.actor


@pytest.mark.parametrize("how", ["killed", "failed", "exited", "driver left"])
def test_a_name_is_free_when_its_actor_is_dead(head, how):
    if how == "failed":
        ask(head, "a", 1)
        head(ActorFailed(actor_id=aid(1), owner=DRIVER, error=error(ErrorKind.APPLICATION)))
    else:
        make(head, 1, "a")
        if how == "killed":
            head(ActorKillRequested(actor_id=aid(1), no_restart=True))
        elif how == "exited":
            assert sent(head(ActorExited(actor_id=aid(1), worker=WORKER, method="A.quit")), WorkerUnwanted, "node-0")
        else:
            head(DriverLeft(address=DRIVER))
    assert ask(head, "a", 2, requester=OTHER, job=1).is_new


def test_the_handles_of_an_actor_that_was_lost_keep_its_name(head):
    make(head, 1, "a")
    lost = error(ErrorKind.WORKER_CRASHED)
    head(LeasedWorkerDied(lease_id=LeaseID("lease-1"), worker=WORKER, error=lost))
    head.machine.check_invariants()
    assert ask(head, "a", 2, requester=OTHER, job=1).error is not None
    head(ActorOutOfScope(actor_id=aid(1)))
    head.machine.check_invariants()
    assert ask(head, "a", 2, requester=OTHER, job=1).is_new


def test_an_exit_of_an_earlier_life_is_late_news(head):
    make(head, 1, "a")
    assert head(ActorExited(actor_id=aid(1), worker=Address("node-0/w9"), method="A.quit")) == []
    assert ask(head, "a").actor is not None


def test_a_claimer_that_dies_before_it_registers_frees_the_name_and_ends_the_actor(head):
    claimer = Address("node-0/w5")
    ask(head, "a", 1, requester=claimer, is_detached=True)
    head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))
    commands = head(WorkerDied(worker=claimer, node=N0, reason="it crashed"))
    [changed] = sent(commands, ActorChanged, DRIVER)
    assert changed.state is ActorState.DEAD
    assert ask(head, "a", 2).is_new


def test_a_detached_actor_stays_when_its_driver_leaves_and_ends_when_it_is_killed(head):
    make(head, 1, "a", is_detached=True)
    commands = head(DriverLeft(address=DRIVER))
    assert sent(commands, WorkerUnwanted) == []
    assert ask(head, "a", requester=OTHER, job=1).actor is not None
    commands = head(ActorKillRequested(actor_id=aid(1), no_restart=True))
    assert [each.worker for each in sent(commands, WorkerUnwanted, "node-0")] == [WORKER]


def test_handles_of_detached_actors_are_the_heads(head):
    borrowed = BorrowAdded(object_id=actor_handle_id(aid(1)), borrower=WORKER)
    assert sent(head(borrowed), BorrowAcknowledged, WORKER) == [BorrowAcknowledged(object_id=borrowed.object_id)]


def test_an_actor_that_was_killed_before_it_was_registered_is_not_made(head):
    ask(head, "a", 1)
    head(ActorKillRequested(actor_id=aid(1), no_restart=True))
    assert sent(register(head, 1, "a"), TaskPushed) == []
    assert ask(head, "a", 2).is_new


@given(
    st.lists(
        st.tuples(st.sampled_from(["claim", "register", "kill", "exit", "leave"]), st.integers(1, 4), st.booleans()),
        max_size=25,
    )
)
def test_whatever_happens_a_name_stands_for_one_actor_that_is_not_dead(steps):
    head = HeadStepper(info("node-0"))
    drivers = [Address(f"driver-{number}") for number in (1, 2)]
    head(*(DriverJoined(address=driver, node=N0, namespace="shop") for driver in drivers))
    left: set[Address] = set()
    claimed: set[int] = set()  # an id is made once, and its handle is there when it has its name
    for step, number, detached in steps:
        driver = drivers[number % 2]
        if driver in left or (number in claimed) == (step == "claim"):
            continue
        match step:
            case "claim":
                claimed.add(number)
                ask(head, f"name-{number // 2}", number, requester=driver, job=1, is_detached=detached)
            case "register":
                if tid(number) not in [r.spec.task_id for r in head.machine.actors.records.values() if r.spec]:
                    register(head, number, f"name-{number // 2}", is_detached=detached, owner=driver)
            case "kill":
                head(ActorKillRequested(actor_id=aid(number), no_restart=True))
            case "exit":
                head(ActorExited(actor_id=aid(number), worker=WORKER, method="A.quit"))
            case "leave":
                head(DriverLeft(address=driver))
                left.add(driver)
    names = head.machine.actors.names
    for entry in names.entries.values():
        record = head.machine.actors.records.get(entry.actor.spec.actor_id)
        assert record is None or record.state is not ActorState.DEAD
