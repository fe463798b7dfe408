"""Random programs on random clusters, in random order, with and without faults: see harness.py for what must hold."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dualray.shared.model.specs import Streaming
from tests.shared.harness import (
    MS,
    AskState,
    Body,
    Call,
    Cancel,
    Deliver,
    Drop,
    DropHandle,
    DropStream,
    DropValue,
    Get,
    KillActor,
    KillNode,
    KillWorker,
    MakeActor,
    Next,
    Op,
    Out,
    Put,
    Reboot,
    Settle,
    Shape,
    Silence,
    Sleep,
    Step,
    Submit,
    Tick,
    Wait,
    run,
)

EXAMPLES = int(os.environ.get("DUALRAY_CLUSTER_EXAMPLES", "150"))

index = st.integers(0, 7)
few = st.lists(index, max_size=2).map(tuple)
some = st.lists(index, min_size=1, max_size=3).map(tuple)
sizes = st.sampled_from((10, 300, 10, 450))
larges = st.sampled_from((0, 0, 0, 200, 300))
timeouts = st.sampled_from((None, None, 0, MS, 20 * MS))

puts = st.builds(Put, size=sizes, nested=few)
gets = st.builds(Get, refs=some, timeout_ns=timeouts)
waits = st.builds(Wait, refs=some, num=st.integers(1, 3), fetch=st.booleans(), timeout_ns=timeouts)
drops = st.builds(Drop, ref=index, keep=st.sampled_from((False, False, False, True)))
handle_drops = st.builds(DropHandle, handle=index, keep=st.sampled_from((False, False, False, True)))
value_drops = st.builds(DropValue, value=index)
cancels = st.builds(Cancel, ref=index, force=st.sampled_from((False, False, True)), recursive=st.booleans())
nexts = st.builds(Next, stream=index, timeout_ns=timeouts)
stream_drops = st.builds(DropStream, stream=index)
sleeps = st.builds(Sleep, ns=st.sampled_from((1000, MS, 5 * MS)))
outs = st.lists(st.builds(Out, size=sizes, nested=few), max_size=2).map(tuple)
endings = st.sampled_from(("return",) * 6 + ("raise", "exit"))


def bodies(depth: int) -> st.SearchStrategy[Body]:
    return st.builds(
        Body,
        steps=st.lists(steps(depth), max_size=4 if depth else 2).map(tuple),
        outs=outs,
        ending=endings,
        bad_attempts=st.sampled_from((1, 2, 100)),
    )


def submits(depth: int) -> st.SearchStrategy[Submit]:
    return st.builds(
        Submit,
        body=bodies(depth),
        deps=few,
        nested=few,
        handles=few,
        retries=st.sampled_from((0, 1, 3, -1)),
        retry_exceptions=st.booleans(),
        cpus=st.sampled_from((1, 1, 0, 2)),
        strategy=st.sampled_from((0, 0, 0, 1, 2, 3, 4, 5)),
        large=larges,
    ).map(_ends)


def generators(depth: int) -> st.SearchStrategy[Submit]:
    return st.builds(
        Submit,
        body=st.builds(
            Body,
            steps=st.lists(steps(depth), max_size=2).map(tuple),
            outs=st.lists(st.builds(Out, size=sizes, nested=few), max_size=4).map(tuple),
            ending=endings,
            bad_attempts=st.sampled_from((1, 2)),
        ),
        deps=few,
        retries=st.sampled_from((0, 1, 3, -1)),
        retry_exceptions=st.booleans(),
        cpus=st.sampled_from((1, 0)),
        streaming=st.sampled_from((Streaming.STREAMING, Streaming.STREAMING, Streaming.DYNAMIC)),
        ahead_max=st.sampled_from((0, 0, 1, 2)),
        max_calls=st.sampled_from((0, 0, 1, 2)),
        runtime_env=st.sampled_from(("", "", "one", "other")),
    ).map(_ends)


def makes(depth: int) -> st.SearchStrategy[MakeActor]:
    return st.builds(
        MakeActor,
        body=bodies(depth),
        deps=few,
        nested=few,
        restarts=st.integers(0, 2),
        strategy=st.integers(0, 4),
        large=larges,
    )


def calls(depth: int) -> st.SearchStrategy[Call]:
    return st.builds(
        Call,
        handle=index,
        body=bodies(depth),
        deps=few,
        nested=few,
        handles=few,
        retries=st.integers(0, 2),
        large=larges,
    )


def _ends(step: Submit) -> Submit:
    """A task that is retried without end must not fail without end."""
    body = step.body
    if step.retries < 0 and body.bad_attempts > 2:
        body = Body(body.steps, body.outs, body.ending, 2)
    return Submit(
        body=body,
        deps=step.deps,
        nested=step.nested,
        handles=step.handles,
        retries=step.retries,
        retry_exceptions=step.retry_exceptions and step.retries >= 0,  # its results may never fit into the store
        cpus=step.cpus,
        strategy=step.strategy,
        streaming=step.streaming,
        ahead_max=step.ahead_max,
        max_calls=step.max_calls,
        runtime_env=step.runtime_env,
        large=step.large,
    )


def steps(depth: int) -> st.SearchStrategy[Step]:
    simple: list[st.SearchStrategy[Step]] = [puts, gets, waits, drops, handle_drops, value_drops, cancels, sleeps]
    if depth == 0:
        return st.one_of(simple)
    nested: list[st.SearchStrategy[Step]] = [
        submits(depth - 1),
        submits(depth - 1),
        makes(depth - 1),
        calls(depth - 1),
    ]
    return st.one_of(simple + nested)


driver_steps: st.SearchStrategy[Op] = st.one_of(
    puts,
    submits(2),
    submits(2),
    submits(1),
    makes(1),
    calls(1),
    calls(1),
    gets,
    gets,
    waits,
    drops,
    drops,
    handle_drops,
    value_drops,
    st.builds(KillActor, handle=index, no_restart=st.booleans()),
    cancels,
    st.just(AskState()),
)
progress: st.SearchStrategy[Op] = st.one_of(
    st.builds(Deliver, count=st.integers(1, 60)),
    st.just(Settle()),
    st.just(Tick()),
)
streaming_steps: st.SearchStrategy[Op] = st.one_of(
    generators(1),
    generators(1),
    nexts,
    nexts,
    nexts,
    nexts,
    stream_drops,
    gets,
    drops,
    cancels,
    submits(1),
    value_drops,
)
"""Programs that are mostly of generators have a test of their own: the others' are as many as they were."""
faults: st.SearchStrategy[Op] = st.one_of(
    st.builds(KillWorker, worker=index),
    st.builds(KillWorker, worker=index),
    st.builds(KillNode, node=index, silently=st.booleans()),
    st.builds(Silence, node=index, heard_after=st.integers(1, 100)),
    st.builds(Reboot, node=index),
)
nodes = st.tuples(st.integers(1, 3), st.just(0), st.sampled_from((1000, 1000, 500, 5000)))
shapes = st.builds(
    Shape, nodes=st.lists(nodes, min_size=1, max_size=3).map(tuple), orderly=st.booleans(), spills=st.booleans()
)
seeds = st.integers(0, 2**32)
peaceful = st.lists(st.one_of(driver_steps, driver_steps, progress), min_size=1, max_size=25)
stormy = st.lists(st.one_of(driver_steps, driver_steps, progress, progress, faults), min_size=1, max_size=30)

profile = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize="DUALRAY_CLUSTER_EXAMPLES" not in os.environ,
)

half = settings(profile, max_examples=EXAMPLES // 2)


@profile
@given(shape=shapes, ops=peaceful, seed=seeds)
def test_without_faults_nothing_is_lost_and_nothing_is_left(shape, ops, seed):
    run(shape, ops, seed=seed, replays=True, faults=False)


@profile
@given(shape=shapes, ops=stormy, seed=seeds)
def test_with_faults_everything_ends_and_nothing_is_left(shape, ops, seed):
    run(shape, ops, seed=seed, replays=True)


@half
@given(
    shape=shapes,
    ops=st.lists(st.one_of(streaming_steps, streaming_steps, progress), min_size=1, max_size=25),
    seed=seeds,
)
def test_generators_without_faults(shape, ops, seed):
    run(shape, ops, seed=seed, replays=True, faults=False)


@half
@given(
    shape=shapes,
    ops=st.lists(st.one_of(streaming_steps, streaming_steps, progress, progress, faults), min_size=1, max_size=30),
    seed=seeds,
)
def test_generators_with_faults(shape, ops, seed):
    run(shape, ops, seed=seed, replays=True)
