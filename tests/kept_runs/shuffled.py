"""Random programs on random clusters of machines, their messages shuffled: tests/shared/harness.py, drawn by a seed.

A simulation delivers messages in the order of their times, and its processes are quick; here anything comes at any
time, disks fail, workers die in the middle of a step. The harness says what must hold, and the digest of all events and
commands is kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from dualray.shared.model.specs import Streaming
from tests.shared import harness as h
from tests.shared import wider as w

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"lease_requests_max": 2, "push_window_max": 4},
    {"worker_starts_max": 1, "workers_prestarted": 0},
    {"pull_bytes_max": 400, "broadcast_receivers_max": 1},
    {"kept_room_bytes_max": 0},
    {"refusals_max": 2, "store_wait_ns": 5 * h.MS},
    {"store_objects_max": 3, "store_wait_ns": 5 * h.MS},
    {"push_window_max": 1, "lease_idle_ns": 0, "lease_turn_ns": h.MS},
    {"fetch_patience_ns": 0, "locality_bytes_max": 0, "broadcast_receivers_max": 1},
    {"wait_told_ns": 1000, "drain_timeout_ns": h.MS},
)
"""Limits that a cluster may have: small ones, at which things happen that are seldom else."""

SHUFFLED = "shuffled"
T = TypeVar("T")


class Drawer:
    """Draws the program of one run: what tests/shared/machines/test_cluster_stateful.py draws, and faults that it has
    not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"shuffled:{seed}")
        self._drivers = 1

    def shape(self) -> h.Shape:
        """A cluster of one to four nodes."""
        count = self._random.randint(1, 4)
        nodes = tuple(
            (self._random.randint(1, 3), self._of(0, 0, 1, 2), self._of(1000, 1000, 500, 5000)) for _ in range(count)
        )
        return h.Shape(nodes=nodes, orderly=self._is_so(0.4), spills=self._is_so(0.4))

    def drivers(self) -> int:
        """How many share the cluster."""
        self._drivers = self._of(1, 1, 1, 2, 3)
        return self._drivers

    def ops(self) -> list[w.WideOp]:
        """What drivers do, how far messages come meanwhile, and what goes wrong."""
        kinds: list[Callable[[], w.WideOp]] = [self._progress, self._progress]
        kinds += [self._of_driver] * 3 if self._is_so(0.7) else [self._of_stream] * 3
        if self._is_so(0.4):
            kinds += [self._seldom]
        if self._is_so(0.7):
            kinds += [self._fault]
        if self._is_so(0.4):
            kinds += [self._rare_fault]
        if self._is_so(0.3):
            kinds += [self._part, lambda: self._call(1), lambda: self._call(0)]
        ops = [self._by_somebody(self._random.choice(kinds)()) for _ in range(self._random.randint(8, 40))]
        for _ in range(self._of(0, 0, 1, 2)):
            place = self._random.randrange(len(ops))
            ops[place:place] = self._of(self._burst, self._burst, self._chain, self._fetches, self._leaving)()
        if self._is_so(0.3):
            place = self._random.randrange(len(ops))
            ops[place:place] = self._parted_actor()
        if self._is_so(0.3):
            ops.insert(self._random.randrange(len(ops)), w.Flaw())
        return ops

    def _burst(self) -> list[w.WideOp]:
        task = h.Submit(body=h.Body(outs=(h.Out(),)), retries=self._of(0, 3, -1))
        cancels = [h.Cancel(self._index(), self._is_so(0.3)) for _ in range(self._of(0, 0, 2, 4))]
        tasks = [self._by_somebody(task)] * self._of(3, 8, 20, 40, 80)
        return [*tasks, h.Deliver(self._random.randint(1, 60)), *[self._by_somebody(cancel) for cancel in cancels]]

    def _chain(self) -> list[w.WideOp]:
        """Tasks each of which waits for the one before, looked at while the first one runs."""
        first = h.Submit(body=h.Body((h.Sleep(5 * h.MS),)))
        others = [h.Submit(deps=(-1,), cpus=self._of(0, 1)) for _ in range(self._of(2, 4, 8, 12))]
        steps: list[w.AnyStep] = [first, *others, h.Get((-1,))]
        by = self._random.randrange(self._drivers)
        ops: list[w.WideOp] = [w.By(by, step) for step in steps]
        return [*ops, h.Deliver(self._random.randint(1, 40)), w.Look()]

    def _fetches(self) -> list[w.WideOp]:
        """Objects on their way to a node that has no memory for them, or ends."""
        by = self._random.randrange(self._drivers)
        count, node = self._random.randint(2, 3), self._random.randint(1, 3)
        ops: list[w.WideOp] = [w.By(by, h.Put(self._of(300, 450))) for _ in range(count)]
        ops += [h.Settle(), w.NoMemory(node, self._of(0, 2, 4, 4))]
        strategy = 2 + 2 * node
        ops += [w.By(by, h.Submit(deps=(-1 - place,), strategy=strategy)) for place in range(0, 2 * count, 2)]
        ops += [h.Deliver(self._random.randint(5, 60))]
        ends: tuple[Callable[[], w.WideOp], ...] = (
            lambda: h.KillNode(node, self._is_so(0.5)),
            h.Tick,
            lambda: w.By(by, h.Cancel(-1)),
            lambda: w.Drain(node),
        )
        ops += [self._of(*ends)() for _ in range(self._random.randint(0, 3))]
        return [*ops, h.Deliver(self._random.randint(1, 40))]

    def _leaving(self) -> list[w.WideOp]:
        """Several nodes are told to leave at once, some of them twice."""
        ops: list[w.WideOp] = []
        for _ in range(self._random.randint(2, 4)):
            ops += [w.Drain(self._random.randint(1, 3)), h.Deliver(self._of(1, 1, 5, 20))]
        return ops

    def _part(self) -> w.WideOp:
        lasting_ns = self._of(1, 15_000, 60_000) * h.MS
        return w.Part(self._random.randrange(12), self._random.randrange(30), lasting_ns, self._is_so(0.6))

    def _parted_actor(self) -> list[w.WideOp]:
        """An actor on the second node, and calls of it that are under way when it is out of reach."""
        by = self._random.randrange(self._drivers)
        actor = h.MakeActor(strategy=4, restarts=self._random.randint(0, 1), concurrency=self._of(1, 1, 3))
        calls = [
            h.Call(
                handle=self._of(0, 0, 1, 2),
                body=h.Body((h.Sleep(self._of(h.MS, 12_000 * h.MS)),) * self._of(0, 1), (h.Out(self._size()),)),
                deps=self._several(0, 1),
                retries=self._of(0, 1, 3),
            )
            for _ in range(self._random.randint(1, 4))
        ]
        lasting_ns = self._of(1, 15_000, 60_000) * h.MS
        parted = w.Part(by, 0, lasting_ns, is_of_actor=True)
        more: list[w.WideOp] = [h.Deliver(self._random.randint(1, 12)), parted]
        more += [h.Tick() for _ in range(self._random.randint(0, 6))]
        return [w.By(by, actor), h.Settle(), *[w.By(by, call) for call in calls], *more, w.By(by, calls[0])]

    def _by_somebody(self, op: w.WideOp) -> w.WideOp:
        if self._drivers > 1 and isinstance(op, w.AnyStep):
            return w.By(self._random.randrange(self._drivers), op)
        return op

    def settings(self) -> dict[str, Any]:
        """Limits of the cluster."""
        return self._random.choice(SETTINGS)

    # ---- What each is made of --------------------------------------------------------------------------------------

    def _is_so(self, chance: float) -> bool:
        return self._random.random() < chance

    def _of(self, *those: T) -> T:
        return self._random.choice(those)

    def _index(self) -> int:
        return self._random.randrange(8)

    def _several(self, least: int, most: int) -> tuple[int, ...]:
        return tuple(self._index() for _ in range(self._random.randint(least, most)))

    def _size(self) -> int:
        return self._of(10, 300, 10, 450)

    def _timeout_ns(self) -> int | None:
        return self._of(None, None, 0, h.MS, 20 * h.MS)

    def _outs(self, most: int) -> tuple[h.Out, ...]:
        return tuple(h.Out(self._size(), self._several(0, 2)) for _ in range(self._random.randint(0, most)))

    def _body(self, depth: int, outs: int = 2) -> h.Body:
        steps = tuple(self._step(depth) for _ in range(self._random.randint(0, 4 if depth else 2)))
        ending = self._of(*("return",) * 12, "raise", "raise", "exit", "exit", "leave")
        return h.Body(steps, self._outs(outs), ending, self._of(1, 2, 100))

    def _submit(self, depth: int) -> h.Submit:
        retries, body = self._of(0, 1, 3, -1), self._body(depth)
        if retries < 0 and body.bad_attempts > 2:  # what is retried without end must not fail without end
            body = h.Body(body.steps, body.outs, body.ending, 2)
        return h.Submit(
            body=body,
            deps=self._several(0, 2),
            nested=self._several(0, 2),
            handles=self._several(0, 2),
            retries=retries,
            retry_exceptions=retries >= 0 and self._is_so(0.5),
            cpus=self._of(1, 1, 0, 2),
            gpus=self._of(0, 0, 0, 0, 1, 2),
            strategy=self._strategy(),
            max_calls=self._of(0, 0, 0, 2),
            large=self._of(0, 0, 0, 0, 200, 300, 650),
        )

    def _strategy(self) -> int:
        labelled = w.WITH_LABELS + self._random.randrange(2 * len(w.LABELS))
        return self._of(0, 0, 0, 1, 2, 3, 4, 5, labelled, w.IN_GROUP + self._random.randrange(4 * w.BUNDLES))

    def _generator(self) -> h.Submit:
        retries = self._of(0, 1, 3, -1)
        body = self._body(1, outs=5)
        return h.Submit(
            body=h.Body(body.steps[:2], body.outs, body.ending, self._of(1, 2)),
            deps=self._several(0, 2),
            retries=retries,
            retry_exceptions=retries >= 0 and self._is_so(0.5),
            cpus=self._of(1, 0),
            streaming=self._of(Streaming.STREAMING, Streaming.STREAMING, Streaming.DYNAMIC),
            ahead_max=self._of(0, 0, 1, 2),
            max_calls=self._of(0, 0, 1, 2),
            runtime_env=self._of("", "", "one", "other"),
        )

    def _actor(self, depth: int) -> h.MakeActor:
        restarts, body = self._of(0, 1, 2, -1), self._body(depth)
        if restarts < 0 and body.bad_attempts > 2:  # what restarts without end must not end without end
            body = h.Body(body.steps, body.outs, body.ending, 2)
        return h.MakeActor(
            body=body,
            deps=self._several(0, 2),
            nested=self._several(0, 2),
            restarts=restarts,
            strategy=self._strategy(),
            large=self._of(0, 0, 0, 0, 200, 300, 650),
            concurrency=self._of(1, 1, 1, 2, 3),
            cpus=self._of(0, 0, 0, 1),
        )

    def _call(self, depth: int) -> h.Call:
        streaming = self._of(*[Streaming.NO] * 5, Streaming.STREAMING)
        return h.Call(
            handle=self._index(),
            body=self._body(depth, outs=5 if streaming else 2),
            deps=self._several(0, 2),
            nested=self._several(0, 2),
            handles=self._several(0, 2),
            retries=self._random.randint(0, 2),
            large=self._of(0, 0, 0, 0, 200, 300, 650),
            streaming=streaming,
            ahead_max=self._of(0, 0, 1, 2),
        )

    def _step(self, depth: int) -> h.Step:
        makers: list[Callable[[], h.Step]] = [
            lambda: h.Put(self._size(), self._several(0, 2)),
            lambda: h.Get(self._several(1, 3), self._timeout_ns()),
            lambda: h.Wait(self._several(1, 3), self._random.randint(1, 3), self._is_so(0.5), self._timeout_ns()),
            lambda: h.Drop(self._index(), self._is_so(0.25)),
            lambda: h.DropHandle(self._index(), self._is_so(0.25)),
            lambda: h.DropValue(self._index()),
            lambda: h.Cancel(self._index(), self._is_so(0.3), self._is_so(0.5)),
            lambda: h.Sleep(self._of(1000, h.MS, 5 * h.MS)),
        ]
        if depth:
            inner = depth - 1
            makers += [lambda: self._submit(inner), lambda: self._submit(inner)]
            makers += [lambda: self._actor(inner), lambda: self._call(inner)]
        return self._random.choice(makers)()

    def _of_driver(self) -> h.Op:
        makers: list[Callable[[], h.Op]] = [
            lambda: self._submit(2),
            lambda: self._submit(2),
            lambda: self._submit(1),
            lambda: self._actor(1),
            lambda: self._call(1),
            lambda: self._call(1),
            lambda: self._step(0),
            lambda: self._step(0),
            lambda: self._step(0),
            lambda: h.Get(self._several(1, 3), self._timeout_ns()),
            lambda: h.KillActor(self._index(), self._is_so(0.5)),
            h.AskState,
        ]
        return self._random.choice(makers)()

    def _of_stream(self) -> h.Op:
        makers: list[Callable[[], h.Op]] = [
            *[self._generator] * 3,
            *[lambda: h.Next(self._index(), self._timeout_ns())] * 5,
            lambda: h.DropStream(self._index()),
            lambda: self._step(0),
            lambda: self._submit(1),
            lambda: self._actor(0),
            lambda: self._call(0),
            lambda: self._call(0),
        ]
        return self._random.choice(makers)()

    def _progress(self) -> h.Op:
        makers: Sequence[Callable[[], h.Op]] = (lambda: h.Deliver(self._random.randint(1, 60)), h.Settle, h.Tick)
        return self._random.choice(makers)()

    def _seldom(self) -> w.WideOp:
        makers: Sequence[Callable[[], w.WideOp]] = (
            lambda: w.MakeGroup(self._random.randrange(4), self._bundles()),
            lambda: w.MakeGroup(self._random.randrange(4), self._bundles()),
            lambda: w.RemoveGroup(self._index()),
            lambda: w.Promise(self._of(0, h.MS, 5 * h.MS)),
            lambda: w.BreakOffPut(self._of(300, 450), self._of(0, h.MS)),
            w.Look,
            w.Look,
        )
        return self._random.choice(makers)()

    def _bundles(self) -> tuple[tuple[int, int], ...]:
        return tuple((self._of(0, 1, 1, 2), self._of(0, 0, 1)) for _ in range(self._random.randint(1, w.BUNDLES - 1)))

    def _rare_fault(self) -> w.WideOp:
        makers: Sequence[Callable[[], w.WideOp]] = (
            lambda: w.DriverEnds(self._index(), self._is_so(0.5)),
            lambda: w.LoseGpu(self._index(), self._of(0, 0, 1)),
            lambda: w.LoseGpu(self._index(), self._of(0, 0, 1)),
            lambda: w.Drain(self._index()),
            self._part,
            lambda: w.OutOfMemory(self._index(), self._several(1, 3)),
            lambda: w.BadStarts(self._index(), self._of(1, 2, 5, 6)),
            lambda: w.NoMemory(self._index(), self._of(1, 2, 4)),
        )
        return self._random.choice(makers)()

    def _fault(self) -> h.Op:
        makers: Sequence[Callable[[], h.Op]] = (
            lambda: h.KillWorker(self._index()),
            lambda: h.KillWorker(self._index()),
            lambda: h.KillNode(self._index(), self._is_so(0.5)),
            lambda: h.Silence(self._index(), self._random.randint(1, 100)),
            lambda: h.Reboot(self._index()),
        )
        return self._random.choice(makers)()


def shuffled(seed: int) -> dict[str, Any]:
    """What is kept of one run: how many events there were, and a digest of them and of all commands.

    Raises:
        AssertionError: something does not hold that must.
    """
    drawer = Drawer(seed)
    drivers = drawer.drivers()
    cluster = w.run_wide(drawer.shape(), drawer.ops(), drivers=drivers, seed=seed, **drawer.settings())
    events = sum(len(process.decisions) for process in cluster.everyone)
    said = blake2b("\n".join((cluster.fingerprint(), *cluster.words)).encode(), digest_size=6)
    return {"events": events, "said": said.hexdigest()}
