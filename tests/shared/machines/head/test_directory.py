"""The directory: where the head knows objects to be, and whom it tells of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualray.shared.machines.head.directory import NO_DEMAND
from dualray.shared.model.commands import Send, WriteRecord
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    CopiesDoubted,
    CopiesJudged,
    CopyKept,
    CopyWanted,
    ItemsDoubted,
    LeasesRecalled,
    LocationsKnown,
    LocationsWanted,
    NodeJoined,
    ObjectAdded,
    ObjectDemanded,
    ObjectFailed,
    ObjectRemoved,
    ObjectsFreed,
    PeerLost,
    WorkerDied,
)
from dualray.shared.model.ids import Address, NodeID
from tests.shared.builders import DRIVER, OTHER, HeadStepper, cpus, error, info, of, oid, sends, sent, shape, tid
from tests.shared.machines.head.news import N0, N1, X, lost, told

# ---- The directory --------------------------------------------------------------------------------------------------


def wanted(node: str = N0, owner: str = DRIVER) -> LocationsWanted:
    return LocationsWanted(object_id=X, owner=Address(owner), node=NodeID(node))


def freed() -> ObjectsFreed:
    return ObjectsFreed(object_ids=(X,))


def removed(node: str) -> ObjectRemoved:
    return ObjectRemoved(object_id=X, node=NodeID(node), incarnation=0)


def known(commands) -> list[tuple[str, tuple[str, ...]]]:
    """Who was told of which places."""
    return [(each.to, each.message.nodes) for each in of(commands, Send) if isinstance(each.message, LocationsKnown)]


def test_who_asks_for_an_object_is_told_where_it_is(head):
    head.added(X, "node-1")
    assert known(head(wanted("node-0"))) == [("node-0", ("node-1",))]


@pytest.fixture
def pieces() -> HeadStepper:
    """A head of six nodes for whom the objects of these tests, of 1,000 bytes, are large; node-1 has X."""
    head = HeadStepper(*(info(f"node-{index}") for index in range(6)), transfer_chunk_bytes=100)
    head.added(X, "node-1")
    return head


# ---- A holder that is out of reach ----------------------------------------------------------------------------------


@pytest.fixture
def four() -> HeadStepper:
    """A head of four nodes; node-1 has X, and owner is the driver."""
    head = HeadStepper(*(info(f"node-{index}") for index in range(4)))
    head.added(X, "node-1")
    return head


def cut_off(node: str = N0, *unreachable: str) -> LocationsWanted:
    away = tuple(map(NodeID, unreachable or ("node-1",)))
    return LocationsWanted(object_id=X, owner=Address(DRIVER), node=NodeID(node), unreachable=away)


def relays(commands) -> list[str]:
    """Who is to fetch a copy for others."""
    return [each.to for each in of(commands, Send) if isinstance(each.message, CopyWanted)]


def kept(node: str) -> CopyKept:
    return CopyKept(object_id=X, node=NodeID(node))


YES, NO = CopiesJudged(object_id=X), CopiesJudged(object_id=X, why_kept="it was put")


def test_a_holder_in_reach_is_named_though_another_is_not(four):
    four.added(X, "node-2")
    commands = four(cut_off())
    assert [set(nodes) for _, nodes in known(commands)] == [{"node-1", "node-2"}]
    assert relays(commands) == []


def test_what_is_out_of_reach_is_fetched_by_a_third_node_once_for_all_who_wait(four):
    assert relays(four(cut_off(N0))) == ["node-2"]
    assert relays(four(cut_off("node-3"))) == []
    assert known(four(wanted("node-2"))) == [("node-2", ("node-1",))]
    told = known(four.added(X, "node-2"))
    assert [(node, "node-2" in nodes) for node, nodes in told] == [("node-0", True), ("node-3", True)]
    assert four(kept("node-2")) == []
    assert not four.machine.directory.relays


def test_when_no_other_node_can_fetch_it_either_who_waits_is_told_which_link_is_broken(four):
    four(cut_off(N0))
    commands = four(cut_off("node-2"))  # it has been asked to fetch it, and cannot reach node-1, either
    assert relays(commands) == ["node-3"]
    assert sent(four(kept("node-3")), CopiesDoubted, DRIVER) == [CopiesDoubted(object_id=X, node=N0)]
    assert [each.error.kind for each in sent(four(NO), ObjectFailed, N0)] == [ErrorKind.UNREACHABLE]
    assert not four.machine.directory.relays
    assert not four.machine.directory.entries[X].subscribers


def test_with_two_nodes_alone_there_is_no_way_round(head):
    head.added(X, "node-1")
    assert sent(head(cut_off()), ObjectFailed) == []
    (failed,) = sent(head(NO), ObjectFailed, N0)
    assert failed.error.kind is ErrorKind.UNREACHABLE
    for words in (
        "cannot be sent to node-0",
        "its copies are on node-1",
        "no other node can pass it on",
        "The object cannot be recomputed: it was put.",
    ):
        assert words in failed.error.message
    assert list(head.machine.directory.entries[X].nodes) == [N1], "others may have it"


def test_copies_that_cannot_be_brought_to_a_node_are_given_up_and_the_object_is_demanded_near_it(head):
    head.added(X, "node-1")
    assert sent(head(cut_off()), CopiesDoubted, DRIVER) == [CopiesDoubted(object_id=X, node=N0)]
    commands = head(YES)
    assert told(commands, ObjectsFreed) == ["node-1"]
    assert sent(commands, ObjectDemanded) == [], "it is lost when they have gone"
    assert sent(head(removed("node-1")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=1, near=N0)]
    assert head.machine.scheduler.parted
    head.added(X, "node-0")
    assert not (head.machine.directory.relays or head.machine.directory.away)


def test_what_is_placed_on_a_node_that_its_owner_turns_out_not_to_reach_is_given_back(head):
    """Found by scenarios/parted_swarm.yaml, seed 80: what a lease waited for was made again where it could not be
    brought from, until it was given up."""
    head.ask(shape(cpus(2)), request="driver-1#0")
    head.ask(shape(cpus(1)), request="driver-1#1")
    head.ask(shape(cpus(1)), request="node-1/w0#0", owner="node-1/w0")
    assert set(head.machine.scheduler.owners_waiting(N1)) == {DRIVER, "node-1/w0"}
    head.added(X, "node-0")
    head(cut_off("node-1", "node-0"))
    assert sent(head(YES), LeasesRecalled, "node-1") == [LeasesRecalled(owner=Address(DRIVER))]


def test_a_holder_that_dies_is_no_copy_to_wait_for(head):
    head.added(X, "node-1")
    head(cut_off(), YES)
    assert sent(head(lost("node-1")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=1, near=N0)]


def test_who_reaches_none_of_several_holders_is_likelier_cut_off_himself(four):
    four.added(X, "node-2")
    commands = four(cut_off(N0, "node-1", "node-2"))
    assert relays(commands) == []
    assert sent(commands, CopiesDoubted, DRIVER) == [CopiesDoubted(object_id=X, node=N0)]
    assert relays(four(NO)) == ["node-3"], "it may be the links all the same"
    assert sent(four(cut_off("node-3", "node-1", "node-2")), ObjectFailed, N0)


def test_who_was_out_of_reach_is_until_the_object_has_come(four):
    """Else who asks is sent to one after the other, and to the first again when that was long ago."""
    four(cut_off(N0, "node-1"))
    four.added(X, "node-2")
    assert len(sent(four(cut_off(N0, "node-2")), CopiesDoubted)) == 1
    four.added(X, N0)
    four(removed(N0))
    assert known(four(cut_off(N0, "node-2"))) == [("node-0", ("node-1", "node-2"))]


def test_an_answer_that_comes_when_there_is_another_copy_changes_nothing(four):
    four(cut_off(N0), cut_off("node-2"), kept("node-3"))
    assert [node for node, _ in known(four.added(X, "node-3"))] == ["node-0", "node-2"]
    assert four(YES) == []


def test_an_answer_for_a_node_that_has_died_costs_no_copy(head):
    head.added(X, "node-1")
    head(cut_off(), lost("node-0"))
    assert told(head(YES), ObjectsFreed) == []
    assert not (head.machine.directory.relays or head.machine.directory.away)


def test_what_was_on_its_way_when_its_copies_were_given_up_is_no_copy(four):
    """What is made again may be other bytes."""
    (told_first,) = sent(four(wanted("node-3")), LocationsKnown, "node-3")
    four(cut_off(N0), cut_off("node-2"), kept("node-3"), YES, removed("node-1"))
    late = ObjectAdded(
        object_id=X, size_bytes=1000, owner=DRIVER, node=NodeID("node-3"), incarnation=0, turn=told_first.turn
    )
    commands = four(late)
    assert (known(commands), told(commands, ObjectsFreed)) == ([], ["node-3"])
    four.added(X, N0)
    (told_then,) = sent(four(wanted("node-3")), LocationsKnown, "node-3")
    assert told_then.nodes == (N0,)
    late.turn = told_then.turn
    assert told(four(late), ObjectsFreed) == []


def test_a_node_that_dies_while_it_fetches_is_followed_by_the_next(four):
    four(cut_off())
    commands = four(lost("node-2"))
    assert relays(commands) == ["node-3"]
    commands = four(lost("node-1"))
    assert len(sent(commands, ObjectDemanded)) == 1, "the holder is dead: now it is made again"
    assert four(kept("node-3")) == []
    assert known(four.added(X, "node-3")) == [("node-0", ("node-3",))]


def test_what_is_freed_is_fetched_for_nobody(four):
    four(cut_off())
    assert len(sent(four(freed()), ObjectFailed, N0)) == 1
    assert four(kept("node-2")) == []
    assert not four.machine.directory.relays


def first(commands) -> list[str]:
    return [nodes[0] for _, nodes in known(commands)]


def test_who_asks_for_a_large_object_is_sent_along_a_chain(pieces):
    assert known(pieces(wanted("node-0"))) == [("node-0", ("node-1",))]
    assert known(pieces(wanted("node-2"))) == [("node-2", ("node-0", "node-1"))]
    assert known(pieces(wanted("node-3"))) == [("node-3", ("node-2", "node-1"))]
    pieces.added(X, "node-0")
    assert known(pieces(wanted("node-4"))) == [("node-4", ("node-1", "node-0"))], "it serves nobody any more"


def test_each_answer_has_a_later_turn(pieces):
    turns = [sent(pieces(wanted(f"node-{index}")), LocationsKnown)[0].turn for index in (0, 2, 3, 2)]
    assert turns == sorted(set(turns))


def test_who_asks_again_is_no_source_of_his_own_and_is_asked_by_later_ones_only(pieces):
    pieces(wanted("node-0"))
    assert known(pieces(wanted("node-0"))) == [("node-0", ("node-1",))]
    assert first(pieces(wanted("node-2"))) == ["node-0"]


def test_a_node_that_died_is_in_no_chain(pieces):
    pieces(wanted("node-0"), lost("node-0"))
    assert first(pieces(wanted("node-2"))) == ["node-1"]


def test_nobody_is_sent_to_those_who_receive_what_has_been_lost(pieces):
    pieces(wanted("node-0"), removed("node-1"))
    pieces.added(X, "node-2")
    pieces(wanted("node-3"))
    assert first(pieces(wanted("node-4"))) == ["node-3"], "node-0 may have other bytes"


def test_an_owners_question_makes_no_chain(pieces):
    pieces(LocationsWanted(object_id=X, owner=DRIVER, node=N0, by_owner=True))
    assert first(pieces(wanted("node-2"))) == ["node-1"]


def test_who_asks_for_an_object_that_is_nowhere_waits_and_its_owner_is_asked(head):
    commands = head(wanted("node-0"))
    assert sends(commands) == [(DRIVER, "ObjectDemanded")]
    assert known(head.added(X, "node-1")) == [("node-0", ("node-1",))]


def test_who_waits_is_told_once(head):
    head(wanted("node-0"))
    head.added(X, "node-1")
    assert known(head(ObjectAdded(object_id=X, size_bytes=1000, owner=DRIVER, node=N1, incarnation=0))) == []


def test_a_demand_counts_how_often_the_last_copy_has_gone(head):
    head.added(X, "node-1")
    head(removed("node-1"))
    assert sent(head(wanted("node-0")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=1)]
    head.added(X, "node-1")
    assert sent(head(removed("node-1"), wanted("node-0")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=2)]


def test_a_demand_says_whether_who_waits_is_held_up(head):
    held_up = LocationsWanted(object_id=X, owner=DRIVER, node=N0, is_held_up=True)
    assert sent(head(held_up), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=0, is_held_up=True)]
    head.added(X, "node-0")
    assert sent(head(removed("node-0"), wanted("node-1")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=1)]


def test_a_demand_says_whether_who_had_the_last_copy_was_held_up(head):
    head.added(X, "node-0")
    gone = replace(removed("node-0"), is_held_up=True)
    lost = ObjectDemanded(object_id=X, losses=1, is_held_up=True)
    assert sent(head(gone, wanted("node-1")), ObjectDemanded) == [lost]
    head.added(X, "node-0")
    assert sent(head(removed("node-0"), wanted("node-1")), ObjectDemanded) == [ObjectDemanded(object_id=X, losses=2)]


def test_a_demand_that_answers_the_owners_own_question_says_so(head):
    asked = LocationsWanted(object_id=X, owner=DRIVER, node=N0, by_owner=True)
    assert sent(head(asked), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=0, asked=True)]
    head.added(X, "node-1")
    assert sent(head(asked), ObjectDemanded) == []


def test_as_long_as_one_copy_is_left_nothing_is_lost(head):
    head.added(X, "node-0")
    head.added(X, "node-1")
    head(removed("node-1"))
    assert known(head(wanted("node-1"))) == [("node-1", ("node-0",))]


def test_the_loss_of_the_last_copy_is_demanded_only_when_someone_waits(head):
    head.added(X, "node-1")
    assert sent(head(removed("node-1")), ObjectDemanded) == []


def test_a_node_that_asks_for_what_it_is_said_to_have_waits_for_the_news_of_its_loss(head):
    head.added(X, "node-0")
    assert head(wanted("node-0")) == []
    assert sent(head(removed("node-0")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=1)]


def test_when_a_node_dies_what_others_wait_for_is_demanded_anew(head):
    """Its task may have run there, and nobody has said so yet."""
    head(wanted("node-0"))
    assert sent(head(lost("node-1")), ObjectDemanded, DRIVER) == [ObjectDemanded(object_id=X, losses=0)]


def test_the_news_of_a_nodes_death_goes_before_the_demand(head):
    head(NodeJoined(info=info("node-2")))
    head(wanted("node-0"))
    names = [name for to, name in sends(head(lost("node-1"))) if to == DRIVER]
    assert names.index("NodeDied") < names.index("ObjectDemanded")


def test_a_dead_node_waits_for_nothing(head):
    head(wanted("node-0"), lost("node-0"))
    assert known(head.added(X, "node-1")) == []


def test_a_freed_object_is_deleted_wherever_it_is(head):
    head.added(X, "node-0")
    head.added(X, "node-1")
    assert told(head(freed()), ObjectsFreed) == ["node-0", "node-1"]
    assert head(freed()) == []


def test_who_waits_for_an_object_that_is_freed_is_told(head):
    head(wanted("node-0"))
    assert told(head(freed()), ObjectFailed) == ["node-0"]


def test_a_copy_that_is_reported_after_its_object_was_freed_is_asked_about(head):
    head(freed())
    commands = head.added(X, "node-1")
    assert [asked.losses for asked in sent(commands, ObjectDemanded, DRIVER)] == [-1]
    unwanted = ObjectFailed(object_id=X, error=error(ErrorKind.OBJECT_LOST))
    assert told(head(unwanted), ObjectsFreed) == ["node-1"]


def test_the_items_of_a_generator_that_had_lost_attempts_are_asked_about(head):
    head.added(oid(1, 1), "node-1")
    head.added(oid(2, 1), "node-1")
    head(ObjectRemoved(object_id=oid(1, 1), node=N1, incarnation=0))
    asked = sent(head(ItemsDoubted(task_id=tid(1))), ObjectDemanded, DRIVER)
    assert asked == [ObjectDemanded(object_id=oid(1, 1), losses=NO_DEMAND)]
    asked = sent(head.added(oid(1, 2), "node-1"), ObjectDemanded, DRIVER)
    assert asked == [ObjectDemanded(object_id=oid(1, 2), losses=NO_DEMAND)], "the news of it came late"
    assert sent(head.added(oid(2, 2), "node-1"), ObjectDemanded) == []


def test_who_waits_for_an_object_that_can_not_be_made_again_is_told_why(head):
    head(wanted("node-0"))
    failed = ObjectFailed(object_id=X, error=error(ErrorKind.RECONSTRUCTION_FAILED))
    assert sent(head(failed), ObjectFailed, "node-0") == [failed]


def test_who_waits_for_an_object_of_a_dead_owner_is_told(head):
    head(wanted("node-0", OTHER))
    (failed,) = sent(head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL")), ObjectFailed, "node-0")
    assert failed.error.kind is ErrorKind.OWNER_DIED
    assert failed.error.message == "Object 09090909:0 is lost: node-1/w0, which owned it, died."


@pytest.mark.parametrize(
    "death", [WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"), PeerLost(address=Address("node-1"))]
)
def test_who_asks_for_an_object_of_a_dead_owner_is_told_at_once(head, death):
    head(death)
    assert told(head(wanted("node-0", OTHER)), ObjectFailed) == ["node-0"]


def test_a_copy_of_a_dead_owners_object_is_deleted(head):
    head(WorkerDied(worker=OTHER, node=N1, reason="SIGKILL"))
    assert told(head.added(X, "node-0", owner=OTHER), ObjectsFreed) == ["node-0"]


def test_a_copy_is_written_down(head):
    (record,) = of(head.added(X, "node-1"), WriteRecord)
    assert (record.table, record.key) == ("objects", X.hex())
    assert dict(record.fields) == {"owner": DRIVER, "bytes": "1000", "nodes": "node-1"}
