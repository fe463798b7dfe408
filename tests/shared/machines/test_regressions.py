"""Programs that once brought a cluster to a hang, a leak or a crash, as small as they were found: see harness.py.

Each is run with the seed that found it and with others, for a change of the machines shifts the order of messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dualray.shared.model.events import NodeJoined
from dualray.shared.model.specs import Streaming
from tests.shared.builders import HeadStepper, cpus, info
from tests.shared.harness import (
    Body,
    Call,
    Deliver,
    Drop,
    DropHandle,
    Get,
    KillActor,
    KillNode,
    KillWorker,
    MakeActor,
    Op,
    Out,
    Put,
    Reboot,
    Settle,
    Shape,
    Silence,
    Submit,
    Tick,
    Wait,
    run,
)

SEEDS = range(8)

NOTHING = Body(outs=())
SMALL_STORE = Shape(nodes=((2, 0, 500),))
ONE_NODE = Shape(nodes=((2, 0, 5000),))
TWO_NODES = Shape(nodes=((2, 0, 5000), (3, 0, 1000)))


def stored(*sizes: int, nested: tuple[int, ...] = ()) -> Body:
    return Body(outs=tuple(Out(size=size, nested=nested) for size in sizes))


@dataclass(frozen=True)
class Story:
    """What went wrong, and how."""

    name: str
    shape: Shape
    ops: tuple[Op, ...]
    seed: int = 0
    faults: bool = True


STORIES = (
    # ---- Payloads
    Story(
        "the exception of a task without results was kept for ever",
        ONE_NODE,
        (Submit(body=Body(outs=(), ending="raise")),),
        faults=False,
    ),
    Story(
        "the exception of a task whose first result was dropped could not be copied to the second",
        ONE_NODE,
        (Submit(body=Body(outs=(Out(), Out()), ending="raise")), Drop()),
        seed=9,
        faults=False,
    ),
    Story(
        "the head kept the exception of a constructor",
        ONE_NODE,
        (MakeActor(body=Body(outs=(), ending="raise")),),
        seed=4,
        faults=False,
    ),
    Story(
        "bytes that were reported late to a process that had dropped and borrowed the object again were kept",
        Shape(nodes=((2, 0, 500),), orderly=True),
        (
            Submit(),
            Settle(),
            Submit(body=Body(steps=(Wait(refs=(7,), timeout_ns=0),), outs=()), nested=(0,)),
            Submit(body=NOTHING, nested=(0,)),
        ),
        seed=9,
    ),
    # ---- Actors
    Story(
        "an actor whose handle was dropped before its arguments were ready was constructed for ever",
        ONE_NODE,
        (Submit(body=Body(steps=(Submit(body=stored(450)), MakeActor(body=NOTHING, deps=(0,))), outs=())),),
        faults=False,
    ),
    Story(
        "a process that died between subscribing to its actor and registering it left an actor that never came",
        Shape(nodes=((2, 0, 1000), (1, 0, 1000))),
        (
            Submit(
                body=Body(
                    steps=(MakeActor(body=Body(steps=(MakeActor(body=NOTHING),), outs=())),),
                    outs=(),
                ),
                strategy=3,
            ),
        ),
        seed=3,
        faults=False,
    ),
    Story(
        "placements for an owner that had exited were not settled",
        Shape(nodes=((3, 0, 500),)),
        (MakeActor(body=Body(steps=(Submit(body=NOTHING, strategy=5),), outs=(), ending="raise")),),
        seed=2,
        faults=False,
    ),
    Story(
        "an actor's call waited for a result that only a call behind it could make again",
        TWO_NODES,
        (
            MakeActor(body=NOTHING, restarts=2),
            Call(body=stored(300), handles=(6,), retries=2),
            Call(body=Body(steps=(Put(), Put(size=300)), outs=()), deps=(4,), retries=2),
            Deliver(count=35),
            KillNode(),
        ),
    ),
    Story(
        "a borrower that died was noted after the news of its death",
        Shape(nodes=((1, 0, 1000),)),
        (
            MakeActor(body=NOTHING),
            Settle(),
            Submit(body=NOTHING, cpus=2),
            Drop(),
            Submit(body=Body(outs=(Out(nested=(7,)),)), handles=(4,), cpus=0, strategy=1),
            Submit(body=Body(steps=(Call(body=stored(300)), Call(body=NOTHING, handles=(0,))), outs=()), handles=(6,)),
            Call(body=Body(steps=(DropHandle(),), outs=(Out(), Out(size=450))), deps=(2,), handles=(6,)),
            Deliver(count=35),
            Deliver(count=50),
            KillActor(handle=7, no_restart=False),
            Put(size=300, nested=(3,)),
            Call(
                handle=5,
                body=Body(
                    steps=(Drop(ref=6), Drop(ref=5, keep=True)),
                    outs=(Out(size=450, nested=(4,)),),
                    bad_attempts=100,
                ),
                deps=(7,),
                nested=(0,),
                handles=(6, 7),
            ),
        ),
        seed=4611,
        faults=False,
    ),
    # ---- Leases and tasks
    Story(
        "what a task had put was taken for one of its results by a worker that owned the task it ran",
        Shape(nodes=((3, 0, 500),), orderly=True),
        (
            Submit(body=NOTHING),
            Submit(body=Body(steps=(Submit(body=Body(steps=(Put(),), outs=()), cpus=2),), outs=())),
        ),
        seed=1,
        faults=False,
    ),
    Story(
        "a rebooted node settled what had been placed on its earlier life",
        Shape(nodes=((1, 0, 5000), (3, 0, 500))),
        (KillNode(), Reboot(), Submit(body=NOTHING, strategy=4)),
        seed=5,
    ),
    Story(
        "a task that waited for a lost argument held the worker on which it was to be made again",
        SMALL_STORE,
        (
            Submit(body=stored(300, 450), retries=3),
            Submit(body=Body(outs=(), ending="exit"), deps=(4,), retries=5),
            Deliver(count=43),
        ),
        seed=12520,
    ),
    Story(
        "a node that was taken for dead and heard again kept its leases",
        TWO_NODES,
        (MakeActor(body=NOTHING), Silence(), Settle(), Tick()),
    ),
    Story(
        "a worker that was cut off with its node kept its actor",
        Shape(nodes=((1, 0, 1000), (1, 0, 1000))),
        (
            Submit(body=Body(steps=(MakeActor(body=NOTHING),), outs=()), strategy=4),
            KillWorker(),
            KillWorker(),
            Silence(),
            Deliver(count=16),
            Tick(),
        ),
        seed=1,
    ),
    # ---- Stores
    Story(
        "an object was unpinned while a wait that had counted it waited for another",
        Shape(nodes=((2, 0, 1000),), orderly=True),
        (
            Submit(body=stored(300)),
            Submit(body=stored(450), retries=1),
            MakeActor(body=NOTHING),
            Submit(),
            Call(body=Body(steps=(Get(refs=(4,)),)), nested=(7,)),
            Call(body=stored(450), deps=(5, 4)),
        ),
        seed=1,
        faults=False,
    ),
    Story(
        "a copy that was made again was gone before its owner had heard of it",
        Shape(nodes=((2, 0, 1000), (1, 0, 500))),
        (Submit(body=stored(300, 300), retries=5, strategy=5), Wait()),
        seed=1,
        faults=False,
    ),
    Story(
        "the death of a node was heard of after its next life had asked for an object, which nobody sent then",
        Shape(nodes=((1, 0, 700), (2, 0, 5000)), orderly=True, spills=True),
        (
            Submit(body=Body(outs=(Out(), Out(size=300))), deps=(5, 1), nested=(2, 3), retries=3),
            Submit(body=Body(steps=(Submit(deps=(7, 2), nested=(6,), retries=3, strategy=2),)), nested=(7,), retries=3),
            Deliver(count=10),
            Submit(body=NOTHING, deps=(6, 5), nested=(6,), retries=-1, strategy=4),
            Deliver(count=5),
            Submit(
                body=Body(steps=(Get(refs=(4,)), Put(size=450), Get(refs=(7,))), outs=(Out(size=300), Out())),
                deps=(0, 1),
                nested=(1, 1),
                retries=-1,
                cpus=0,
                strategy=5,
            ),
            Put(size=300),
            Put(size=300),
            KillNode(),
            Deliver(count=15),
            Reboot(),
        ),
        seed=748,
    ),
    Story(
        "what was on the disk of a full node was read back for another, in vain, for ever",
        Shape(nodes=((1, 0, 700), (1, 0, 700), (1, 0, 5000)), spills=True),
        (
            Put(size=300),
            Submit(
                body=Body(steps=(Get(refs=(6,)),), outs=(Out(size=450), Out())),
                deps=(4,),
                nested=(1,),
                retries=-1,
                strategy=3,
            ),
            Deliver(count=24),
            Submit(body=stored(450), nested=(4, 4), retries=1, cpus=2, strategy=5),
            Submit(
                body=Body(
                    steps=(
                        Submit(
                            body=Body(steps=(Get(refs=(2,)), Get(refs=(5,))), outs=()),
                            deps=(1,),
                            nested=(6, 2),
                            cpus=2,
                        ),
                    )
                ),
                deps=(2, 1),
                nested=(1, 5),
            ),
            Put(size=300),
            Put(size=300),
            Drop(ref=3),
            Submit(
                body=Body(steps=(Put(), Put(size=450)), outs=(Out(size=300),)),
                deps=(5, 6),
                nested=(3, 5),
                retries=3,
                strategy=2,
            ),
            Submit(body=Body(steps=(Get(refs=(2,)), Get(refs=(4,))), outs=()), nested=(5,), strategy=4),
        ),
        seed=122,
    ),
    Story(
        "an object that a `get` was to say it had found no room for was opened, when it was lost before that",
        Shape(nodes=((1, 0, 700), (3, 0, 500), (3, 0, 5000))),
        (
            Put(),
            Submit(body=Body(steps=(Get(refs=(7,)),), outs=(Out(size=450), Out())), retries=1, cpus=2, strategy=5),
            Put(size=450),
            Deliver(count=21),
            Get(refs=(1,)),
            Put(size=450),
            Submit(body=stored(450), deps=(5,), retries=3, strategy=2),
            Tick(),
            Deliver(count=20),
            MakeActor(body=Body(steps=(Get(),), outs=()), restarts=1, strategy=3),
            Put(size=450),
            MakeActor(body=Body(steps=(Put(size=300), Get(refs=(4,)), Put()), outs=()), strategy=5),
        ),
        seed=1468,
        faults=False,
    ),
    Story(
        "an object that left a full store could not be made again from one that had been dropped",
        Shape(nodes=((3, 0, 500), (1, 0, 1000))),
        (
            Submit(body=Body(outs=(Out(size=450), Out()))),
            Drop(ref=1),
            Submit(body=stored(300), deps=(2,), retries=3, strategy=1),
            Submit(body=Body(steps=(Put(size=300),), outs=()), deps=(6,), strategy=4),
            Drop(),
            Get(refs=(4,)),
        ),
        seed=5,
        faults=False,
    ),
    Story(
        "the seal of an actor's result came after its worker's end, and nobody noticed that it was lost",
        Shape(nodes=((1, 0, 500),), orderly=True),
        (MakeActor(body=NOTHING), Call(body=stored(300)), DropHandle(), Submit(body=NOTHING, deps=(1,))),
        seed=1,
        faults=False,
    ),
    Story(
        "a worker was killed between its task's end and the seal of the result",
        Shape(nodes=((3, 0, 1000),), orderly=True),
        (
            MakeActor(body=Body(outs=(), ending="exit")),
            Deliver(count=9),
            Submit(body=stored(450), handles=(6,)),
            Deliver(count=21),
            KillWorker(),
            Get(refs=(1,)),
        ),
        seed=5,
    ),
    # ---- Generators
    Story(
        "a node waited for ever for an item that was an error, or was not made at all, when it was made again",
        Shape(nodes=((2, 0, 1000),)),
        (
            Submit(body=stored(300, 300, 300, 300), retries=2, streaming=Streaming.DYNAMIC),
            Settle(),
            Get(),
            Settle(),
            Submit(deps=(1, 2, 3, 4)),
        ),
        faults=False,
    ),
    Story(
        "an old copy was kept of an item that was an error when it was made again",
        Shape(nodes=((2, 0, 1000),)),
        (
            Submit(body=stored(450, 450, 450), retries=1, streaming=Streaming.DYNAMIC),
            Settle(),
            Get(),
            Settle(),
            Submit(deps=(1, 2, 3)),
        ),
        seed=4,
        faults=False,
    ),
    Story(
        "an item was kept whose worker had died before its owner heard of it, and no attempt was left",
        Shape(nodes=((3, 0, 1000),)),
        (
            Submit(
                body=Body(outs=(Out(450), Out(), Out(300), Out(300)), ending="exit", bad_attempts=2),
                streaming=Streaming.DYNAMIC,
            ),
            Settle(),
        ),
        seed=6,
    ),
    Story(
        "an item was kept that the last attempt did not make again",
        Shape(nodes=((3, 0, 1000),)),
        (
            Submit(
                body=Body(outs=(Out(450), Out(), Out(300), Out(300)), ending="exit", bad_attempts=2),
                retries=1,
                streaming=Streaming.DYNAMIC,
            ),
            Settle(),
        ),
        seed=11,
    ),
    Story(
        "a generator whose items find no room together was run again for ever",
        Shape(nodes=((2, 0, 1000),)),
        (
            Submit(body=stored(650, 650), retries=-1, streaming=Streaming.DYNAMIC),
            Settle(),
            Get(),
            Settle(),
            Submit(deps=(1, 2)),
        ),
        faults=False,
    ),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name.replace(" ", "-"))
def test_does_not_happen_again(story):
    for seed in (story.seed, *SEEDS):
        run(story.shape, story.ops, seed=seed, faults=story.faults, replays=True)


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
