"""The calls that an owner makes to actors: their order, and what becomes of them in each life of the actor."""

from __future__ import annotations

import pytest

from dualray.shared.model.commands import DropPayload, Send
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorFailed,
    ActorKillAsked,
    ActorKillRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    LeaseRequested,
    TaskPushed,
)
from dualray.shared.model.ids import HEAD
from dualray.shared.model.states import ActorState, ValueState
from tests.shared.builders import (
    DRIVER,
    RAISED,
    OwnerStepper,
    aid,
    completed,
    constructor,
    error,
    oid,
    put_id,
    ref,
    sends,
    sent,
    task,
    tid,
)
from tests.shared.machines.owner.answers import call, demanded, dropped, error_of, pushes, retries

HOME = "node-1/w3"


@pytest.fixture
def alive(actor) -> OwnerStepper:
    actor.actor_is(1, ActorState.ALIVE, worker=HOME)
    return actor


GONE = error(ErrorKind.ACTOR_DIED, "Actor 01010101 has ended: It was killed.")

AWAY = error(ErrorKind.ACTOR_UNAVAILABLE, "Node node-1 died.")


def test_an_actor_is_registered_with_the_head_with_its_arguments_beside(driver):
    driver.put(1)
    commands = driver.submit(constructor(1, deps=(ref(put_id(1)),)))
    registered = ActorRegistered(spec=constructor(1, deps=(ref(put_id(1)),)), inline_deps=(put_id(1),))
    assert Send(to=HEAD, message=registered, payloads=(tid(1), put_id(1))) in commands
    assert sent(commands, ActorSubscribed, HEAD) == [ActorSubscribed(actor_id=aid(1), subscriber=DRIVER)]
    assert sent(commands, LeaseRequested) == []


def test_an_actor_whose_argument_fails_is_never_made(driver):
    driver.submit(task(2), constructor(1, deps=(ref(oid(2)),)))
    driver.grant()
    commands = driver.finish(2, failed=RAISED)
    assert sent(commands, ActorFailed, HEAD) == [ActorFailed(actor_id=aid(1), owner=DRIVER, error=RAISED)]


def test_calls_wait_until_the_actor_is_alive_and_go_in_order(actor):
    assert pushes(actor.submit(call(2), call(3))) == []
    commands = actor.actor_is(1, ActorState.ALIVE, worker=HOME)
    assert pushes(commands) == [(2, 0, HOME), (3, 0, HOME)]


def test_a_call_goes_straight_to_the_actors_worker(alive):
    assert sends(alive.submit(call(2))) == [(HOME, "TaskPushed")]


def test_a_call_that_waits_for_an_argument_holds_back_those_behind_it(alive):
    alive.submit(task(5))
    alive.grant()
    assert pushes(alive.submit(call(2, deps=(ref(oid(5)),)), call(3))) == []
    assert pushes(alive.finish(5)) == [(2, 0, HOME), (3, 0, HOME)]


def test_a_call_whose_argument_failed_lets_those_behind_it_go(alive):
    alive.submit(task(5))
    alive.grant()
    alive.submit(call(2, deps=(ref(oid(5)),)), call(3))
    assert pushes(alive.finish(5, failed=RAISED)) == [(3, 0, HOME)]


def test_a_call_of_a_dead_actor_fails_with_its_end_whatever_its_arguments_did(alive):
    alive.submit(task(5))
    alive.grant()
    alive.finish(5, failed=RAISED)
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    alive.submit(call(2, deps=(ref(oid(5)),)))
    assert error_of(alive, oid(2)) == GONE.message


def test_a_handle_from_elsewhere_asks_the_head_where_the_actor_is(driver):
    commands = driver.submit(call(2))
    assert sent(commands, ActorSubscribed, HEAD) == [ActorSubscribed(actor_id=aid(1), subscriber=DRIVER)]


def test_calls_that_may_not_be_repeated_fail_when_the_actor_restarts(alive):
    alive.submit(call(2, name="Actor.step"))
    alive.wait(1, ref(oid(2)))
    commands = alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert completed(commands) == [(1, (oid(2),))]
    assert error_of(alive, oid(2)) == (
        "Actor 01010101 was lost while it had the call Actor.step (task 02020202): Node node-1 died. "
        "The actor restarts; set max_task_retries, so that dualray repeats such calls."
    )
    assert alive.machine.values.table[oid(2)].error.kind is ErrorKind.ACTOR_UNAVAILABLE


def test_calls_that_may_be_repeated_go_to_the_next_life_before_those_made_since(alive):
    alive.submit(call(2, max_task_retries=1), call(3), call(4, max_task_retries=1))
    commands = alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert retries(commands) == [(2, 1, "retry"), (4, 1, "retry")]
    alive.submit(call(5, max_task_retries=1))
    assert pushes(alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")) == [
        (2, 1, "node-2/w0"),
        (4, 1, "node-2/w0"),
        (5, 0, "node-2/w0"),
    ]


def test_calls_that_may_be_repeated_wait_for_an_actor_that_restarts(alive):
    alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert pushes(alive.submit(call(2, max_task_retries=1), call(3, max_task_retries=-1))) == []
    assert pushes(alive.actor_is(1, ActorState.ALIVE, life=1, worker=HOME)) == [(2, 0, HOME), (3, 0, HOME)]


def test_calls_made_before_its_constructor_crashed_wait_for_the_next_life(actor):
    actor.submit(call(2))
    assert pushes(actor.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)) == []
    assert pushes(actor.actor_is(1, ActorState.ALIVE, life=1, worker=HOME)) == [(2, 0, HOME)]


def test_other_calls_fail_while_the_actor_restarts_once_they_could_be_sent(alive):
    alive.submit(task(5), call(2), call(3, deps=(ref(oid(5)),)), call(4))
    alive.grant()
    alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    alive.submit(call(6))
    waits = (ref(oid(3)), ref(oid(4)), ref(oid(6)))
    alive.wait(1, *waits)
    commands = alive.finish(5)
    assert completed(commands) == [(1, tuple(each.object_id for each in waits))]
    assert "actor 01010101 is temporarily unavailable" in error_of(alive, oid(3))
    assert pushes(alive.actor_is(1, ActorState.ALIVE, life=1, worker=HOME)) == []
    assert pushes(alive.submit(call(7))) == [(7, 0, HOME)]


def test_calls_in_flight_are_lost_also_when_the_news_of_the_restart_is_the_next_life(alive):
    alive.submit(call(2, max_task_retries=1))
    commands = alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")
    assert pushes(commands) == [(2, 1, "node-2/w0")]


def test_when_the_actor_has_died_sent_and_waiting_calls_fail_with_its_reason(alive):
    alive.submit(task(5), call(2, max_task_retries=5), call(3, deps=(ref(oid(5)),)))
    alive.wait(1, ref(oid(2)), ref(oid(3)))
    assert completed(alive.actor_is(1, ActorState.DEAD, failed=GONE)) == [(1, (oid(2), oid(3)))]
    assert error_of(alive, oid(2)) == error_of(alive, oid(3)) == GONE.message


def test_a_call_to_an_actor_that_has_died_fails_at_once(alive):
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    alive.submit(call(2))
    assert error_of(alive, oid(2)) == GONE.message


def test_death_is_final(alive):
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    alive.actor_is(1, ActorState.ALIVE, life=1, worker=HOME)
    assert pushes(alive.submit(call(2))) == []


def test_news_of_an_earlier_life_is_old(alive):
    alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")
    alive.actor_is(1, ActorState.RESTARTING, life=0, failed=AWAY)
    assert pushes(alive.submit(call(2))) == [(2, 0, "node-2/w0")]


def test_an_answer_of_an_earlier_life_is_dropped(alive):
    alive.submit(call(2, max_task_retries=1))
    alive.actor_is(1, ActorState.ALIVE, life=1, worker="node-2/w0")
    assert alive.finish(2, worker=HOME) == [DropPayload(key=oid(2))]
    assert alive.machine.values.table[oid(2)].state is ValueState.PENDING


def test_an_answered_call_is_not_lost_with_the_actor(alive):
    alive.submit(call(2))
    alive.finish(2, worker=HOME)
    alive.actor_is(1, ActorState.RESTARTING, life=1, failed=AWAY)
    assert alive.machine.values.table[oid(2)].state is ValueState.INLINE


def test_a_method_that_raised_is_called_again_when_it_asks_for_that(alive):
    alive.submit(call(2, max_task_retries=1, retry_exceptions=True))
    assert pushes(alive.finish(2, worker=HOME, failed=RAISED)) == [(2, 1, HOME)]
    alive.finish(2, attempt=1, worker=HOME, failed=RAISED)
    assert alive.machine.values.table[oid(2)].error.kind is ErrorKind.APPLICATION


def test_a_call_whose_result_was_lost_is_made_again_before_those_that_wait(alive):
    alive.submit(call(2, max_task_retries=1))
    alive.finish(2, worker=HOME, inline=False)
    alive.submit(task(5), call(3, deps=(ref(oid(5)),)), call(4))
    commands = demanded(alive, oid(2))
    assert pushes(commands) == [(2, 1, HOME)]
    assert [pushed.again for pushed in sent(commands, TaskPushed)] == [True]


def test_the_last_handle_ends_the_actor(alive):
    assert sent(alive(dropped(oid(1))), ActorOutOfScope, HEAD) == [ActorOutOfScope(actor_id=aid(1))]


def test_a_call_that_is_not_finished_keeps_the_actor(alive):
    spec = call(2)
    spec.actor_handle = ref(oid(1))
    alive.submit(spec)
    assert sent(alive(dropped(oid(1))), ActorOutOfScope) == []
    assert len(sent(alive.finish(2, worker=HOME), ActorOutOfScope)) == 1


def test_the_arguments_of_the_constructor_are_kept_until_the_actor_has_died(driver):
    driver.put(1)
    driver.submit(constructor(1, deps=(ref(put_id(1)),)))
    driver.actor_is(1, ActorState.ALIVE, worker=HOME)
    assert DropPayload(key=put_id(1)) not in driver(dropped(put_id(1), oid(1)))
    assert DropPayload(key=put_id(1)) in driver.actor_is(1, ActorState.DEAD, failed=GONE)
    assert not driver.machine.tasks.records


def test_an_actor_that_was_killed_before_its_arguments_were_ready_lets_go_of_them(driver):
    driver.submit(task(2), constructor(1, deps=(ref(oid(2)),)))
    driver.grant()
    driver.actor_is(1, ActorState.DEAD, failed=GONE)
    driver(dropped(oid(1), oid(2)))
    commands = driver.finish(2)
    assert sent(commands, ActorRegistered) == []
    assert not driver.machine.tasks.records
    assert not driver.machine.values.table


def test_a_kill_is_the_heads_business(driver):
    killed = driver(ActorKillAsked(actor_id=aid(1), no_restart=False))
    assert killed == [Send(to=HEAD, message=ActorKillRequested(actor_id=aid(1), no_restart=False))]


def test_calls_made_after_a_kill_wait_for_the_news_of_the_death(alive):
    alive(ActorKillAsked(actor_id=aid(1), no_restart=True))
    assert pushes(alive.submit(call(2))) == []
    alive.actor_is(1, ActorState.DEAD, failed=GONE)
    assert error_of(alive, oid(2)) == GONE.message
