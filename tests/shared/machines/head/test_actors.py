"""The actors of the head: their lives, from registration to death."""

from __future__ import annotations

from dualray.shared.model.commands import DropPayload, Send, WriteRecord
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ActorChanged,
    ActorFailed,
    ActorKillRequested,
    ActorOutOfScope,
    ActorRegistered,
    ActorSubscribed,
    LeasedWorkerDied,
    LeaseRequested,
    LeaseReturned,
    NodeJoined,
    PeerLost,
    TaskPushed,
    WorkerDied,
    WorkerUnwanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, exception_id
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.states import ActorState
from tests.shared.builders import (
    CRASH,
    DRIVER,
    OTHER,
    RAISED,
    HeadStepper,
    aid,
    constructor,
    cpus,
    info,
    of,
    oid,
    ref,
    sent,
    tid,
)
from tests.shared.machines.head.news import N1, constructed, grant, lost, placed, register, told

HOME = "node-0/w5"


def worker_died(head: HeadStepper, number: int = 1, *, life: int = 0):
    return head(LeasedWorkerDied(lease_id=LeaseID(f"L{number}.{life}"), worker=Address(HOME), error=CRASH))


def changes(commands, to: str = DRIVER) -> list[tuple[str, int, str | None]]:
    """What a subscriber was told: state, life and worker."""
    return [(str(each.state), each.life, each.worker) for each in sent(commands, ActorChanged, to)]


def reason(commands) -> str:
    """Why the actor is dead, as the driver was told."""
    (changed,) = [each for each in sent(commands, ActorChanged, DRIVER) if each.state is ActorState.DEAD]
    return changed.error.message


def test_a_registered_actor_is_placed(head):
    (asked,) = sent(register(head), LeaseRequested, "node-0")
    assert asked.owner == HEAD
    assert (asked.shape.placement, asked.shape.resources) == (cpus(1), NOTHING)


def test_an_actor_is_constructed_on_the_worker_that_was_granted(head):
    spec = constructor(1, deps=(ref(oid(2)),))
    head(ActorRegistered(spec=spec, inline_deps=(oid(2),)))
    pushed = TaskPushed(spec=spec, attempt=0, reply_to=HEAD, inline_deps=(oid(2),))
    assert grant(head) == [Send(to=Address(HOME), message=pushed, payloads=(tid(1), oid(2)))]


def test_who_subscribes_is_told_of_the_state_now_and_whenever_it_changes(head):
    register(head)
    assert changes(head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))) == [("PENDING", 0, None)]
    grant(head)
    assert changes(constructed(head)) == [("ALIVE", 0, HOME)]


def test_who_subscribes_late_is_told_why_the_actor_is_dead(head):
    register(head)
    head(ActorKillRequested(actor_id=aid(1), no_restart=True))
    commands = head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER))
    assert reason(commands) == "Actor 01010101 has ended: it was killed by `ray.kill` (dualray.kill)."


def test_who_subscribes_to_an_actor_whose_owner_died_before_it_registered_it(head):
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    commands = head(ActorSubscribed(actor_id=aid(1), subscriber=DRIVER, owner=OTHER))
    assert reason(commands) == f"Actor 01010101 has ended: The actor is dead because its owner has died: {OTHER}."


def test_an_actor_whose_worker_died_is_restarted_in_a_new_life(alive):
    commands = worker_died(alive)
    assert changes(commands) == [("RESTARTING", 1, None)]
    assert len(placed(commands)) == 1
    grant(alive, life=1, node="node-1")
    assert changes(constructed(alive, life=1, node="node-1")) == [("ALIVE", 1, "node-1/w5")]


def test_an_actor_whose_node_died_is_restarted_elsewhere(alive):
    commands = alive(lost("node-0"))
    assert changes(commands) == [("RESTARTING", 1, None)]
    assert [to for _, to in placed(commands)] == ["node-1"]


def test_an_actor_whose_node_was_rebooted_is_placed_once(alive):
    """What is sent to the dead node's address reaches its next life."""
    commands = alive(NodeJoined(info=info("node-0", incarnation=1)))
    assert len(placed(commands)) == 1


def test_an_actor_without_restarts_left_is_dead_and_says_how_often_it_was_restarted(alive):
    worker_died(alive)
    grant(alive, life=1)
    constructed(alive, life=1)
    assert reason(worker_died(alive, life=1)) == (
        f"Actor Actor (01010101) died and is not restarted (it had been restarted 1 times): "
        f"The actor is dead because its worker process has died. {CRASH.message}"
    )


def test_an_actor_that_was_never_to_be_restarted_says_so(subscribed):
    register(subscribed)
    grant(subscribed)
    constructed(subscribed)
    assert reason(worker_died(subscribed)).startswith(
        "Actor Actor (01010101) died and is not restarted (max_restarts is 0): "
    )


def test_minus_one_restarts_have_no_end(subscribed):
    register(subscribed, max_restarts=-1)
    for life in range(10):
        grant(subscribed, life=life)
        constructed(subscribed, life=life)
        assert changes(worker_died(subscribed, life=life)) == [("RESTARTING", life + 1, None)]


def test_an_actor_that_is_lost_while_it_is_constructed_is_restarted(subscribed):
    register(subscribed, max_restarts=1)
    grant(subscribed)
    assert changes(worker_died(subscribed)) == [("RESTARTING", 1, None)]


def test_a_worker_that_the_head_cannot_connect_to_ends_unless_its_actor_is_constructed(subscribed):
    register(subscribed)
    grant(subscribed)
    limited = PeerLost(address=Address(HOME), limit="no more files")
    (unwanted,) = sent(subscribed(limited), WorkerUnwanted, "node-0")
    assert (unwanted.worker, unwanted.reason) == (
        HOME,
        f"the head reports that it cannot connect to {HOME}: no more files",
    )
    constructed(subscribed)
    assert subscribed(limited) == []


def test_a_constructor_that_raises_ends_the_actor_and_its_worker(subscribed):
    register(subscribed, max_restarts=5)
    grant(subscribed)
    commands = constructed(subscribed, failed=RAISED)
    assert reason(commands) == "The constructor of actor Actor (01010101) raised: ValueError: no"
    assert told(commands, WorkerUnwanted) == ["node-0"]
    assert DropPayload(key=exception_id(tid(1))) in commands
    assert changes(worker_died(subscribed)) == []


def test_a_constructor_of_an_earlier_life_is_late_news(alive):
    worker_died(alive)
    assert changes(constructed(alive, life=0)) == []


def test_an_actor_that_no_node_could_hold_is_dead(subscribed):
    commands = register(subscribed, placement=cpus(8), name="Big")
    (changed,) = sent(commands, ActorChanged, DRIVER)
    assert changed.error.kind is ErrorKind.ACTOR_UNSCHEDULABLE
    assert changed.error.message.startswith("Big cannot be scheduled: it demands 8 CPU; the nearest node, node-0,")


def test_a_killed_actor_is_dead_and_its_worker_ends(alive):
    commands = alive(ActorKillRequested(actor_id=aid(1), no_restart=True))
    assert reason(commands) == "Actor 01010101 has ended: it was killed by `ray.kill` (dualray.kill)."
    assert sent(commands, WorkerUnwanted, "node-0") == [
        WorkerUnwanted(
            worker=Address(HOME), reason="Actor 01010101 has ended: it was killed by `ray.kill` (dualray.kill)."
        )
    ]
    assert changes(worker_died(alive)) == []


def test_a_kill_with_restart_ends_the_worker_alone(alive):
    commands = alive(ActorKillRequested(actor_id=aid(1), no_restart=False))
    assert changes(commands) == []
    assert told(commands, WorkerUnwanted) == ["node-0"]
    assert changes(worker_died(alive)) == [("RESTARTING", 1, None)]


def test_a_dead_actor_is_killed_in_vain(alive):
    kill = ActorKillRequested(actor_id=aid(1), no_restart=True)
    alive(kill)
    assert alive(kill) == []


def test_an_actor_that_was_killed_before_it_was_made_is_never_made(subscribed):
    subscribed(ActorKillRequested(actor_id=aid(1), no_restart=True))
    commands = register(subscribed)
    assert placed(commands) == []
    assert of(commands, DropPayload) == [DropPayload(key=tid(1))]


def test_an_actor_without_handles_ends(alive):
    commands = alive(ActorOutOfScope(actor_id=aid(1)))
    assert reason(commands) == "Actor 01010101 has ended: Its last handle is gone."


def test_an_actor_ends_with_the_process_that_made_it(subscribed):
    register(subscribed, owner=OTHER, max_restarts=5)
    grant(subscribed)
    constructed(subscribed)
    commands = subscribed(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert reason(commands) == "Actor 01010101 has ended: The actor is dead because its owner has died: node-1/w0."


def test_an_actor_of_a_process_that_died_already_is_never_made(head):
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert placed(register(head, owner=OTHER)) == []


def test_an_actor_whose_argument_failed_is_dead(subscribed):
    commands = subscribed(ActorFailed(actor_id=aid(1), owner=DRIVER, error=RAISED))
    assert reason(commands) == "Actor 01010101 was not created, because an argument failed: ValueError: no"


def test_a_lease_for_an_actor_that_ended_meanwhile_goes_back(subscribed):
    register(subscribed)
    subscribed(ActorOutOfScope(actor_id=aid(1)))
    assert told(grant(subscribed), LeaseReturned) == ["node-0"]


def test_a_second_lease_for_one_life_goes_back(alive):
    assert told(grant(alive, node="node-1", lease="M"), LeaseReturned) == ["node-1"]


def test_a_lease_that_a_zombie_grants_is_not_used(subscribed):
    register(subscribed)
    assert [to for _, to in placed(subscribed(lost("node-0")))] == ["node-1"]
    assert grant(subscribed, node="node-0") == []
    assert told(grant(subscribed, node="node-1"), TaskPushed) == ["node-1/w5"]


def test_the_arguments_are_kept_for_restarts_and_dropped_with_the_actor(head):
    register(head, inline=(oid(2),), max_restarts=1)
    grant(head)
    constructed(head)
    assert of(worker_died(head), DropPayload) == []
    drops = of(head(ActorOutOfScope(actor_id=aid(1))), DropPayload)
    assert drops == [DropPayload(key=tid(1)), DropPayload(key=oid(2))]


def test_an_argument_of_two_actors_is_kept_for_the_other(head):
    register(head, 1, inline=(oid(2),))
    register(head, 3, inline=(oid(2),))
    assert of(head(ActorOutOfScope(actor_id=aid(1))), DropPayload) == [DropPayload(key=tid(1))]
    assert DropPayload(key=oid(2)) in of(head(ActorOutOfScope(actor_id=aid(3))), DropPayload)


def test_a_dead_subscriber_hears_of_nothing(alive):
    alive(ActorSubscribed(actor_id=aid(1), subscriber=OTHER))
    alive(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert changes(worker_died(alive), OTHER) == []


def test_a_change_is_written_down(alive):
    (record,) = [each for each in of(worker_died(alive), WriteRecord) if each.table == "actors"]
    assert dict(record.fields) == {"state": "RESTARTING", "life": "1", "worker": ""}


def test_which_actors_wait(head):
    register(head)
    assert head.machine.explain() == ["actor Actor (01010101) is PENDING"]
