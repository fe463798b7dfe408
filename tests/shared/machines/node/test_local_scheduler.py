"""The local scheduler inside its node: events in, commands out. Each test states one rule in its name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualray.shared.machines.node.local_scheduler import REPORT_TIMER
from dualray.shared.model.commands import ArmTimer, Send, StartWorker, StopWorker
from dualray.shared.model.errors import ErrorKind
from dualray.shared.model.events import (
    ClusterChanged,
    GpuLost,
    LeasedWorkerDied,
    LeaseGranted,
    LeaseRefused,
    LeaseRequested,
    LeaseReturned,
    LeasesGranted,
    LeasesReturned,
    LocationsWanted,
    NodeDied,
    NodeJoined,
    ObjectFailed,
    ObjectReceived,
    OwnerDied,
    ResourcesReported,
    TimerFired,
    WorkerBlocked,
    WorkerDied,
    WorkerExited,
    WorkerReady,
    WorkerRetired,
    WorkerUnblocked,
    WorkerUnwanted,
)
from dualray.shared.model.ids import HEAD, Address, LeaseID, NodeID
from dualray.shared.model.resources import NOTHING
from dualray.shared.model.specs import Strategy, StrategyKind
from tests.shared.builders import (
    DRIVER,
    OTHER,
    NodeStepper,
    cpus,
    error,
    hint,
    info,
    of,
    oid,
    sent,
    shape,
)

W0, W1 = Address("node-0/w0"), Address("node-0/w1")


@pytest.fixture
def node() -> NodeStepper:
    """Two CPUs and two workers that are up and idle."""
    return NodeStepper(total=cpus(2)).with_workers(2)


def commands_of(commands, cls) -> list:
    return [command for command in commands if isinstance(command, cls)]


def grants(commands) -> list[str]:
    return [granted.worker for granted in sent(commands, LeaseGranted)]


def returned(lease: int, *, usable: bool = True, node: str = "node-0") -> LeaseReturned:
    return LeaseReturned(lease_id=LeaseID(f"{node}~0/lease{lease}"), worker_usable=usable)


def exited(worker: str = W0, reason: str = "SIGKILL") -> WorkerExited:
    return WorkerExited(worker=Address(worker), reason=reason)


def free(stepper: NodeStepper) -> dict[str, float]:
    return {name: units / 10_000 for name, units in stepper.machine.scheduler.free.items()}


def spilled(commands) -> int:
    """How many leases were handed on to the head."""
    return sum(asked.count for asked in sent(commands, LeaseRequested, HEAD))


# ---- Granted here, or handed on ------------------------------------------------------------------------------------


def test_a_lease_that_fits_is_granted_at_once_to_its_owner(node):
    commands = node.ask()
    (granted,) = sent(commands, LeaseGranted, DRIVER)
    assert (granted.request_id, granted.node, granted.incarnation) == ("driver-1#0", "node-0", 0)
    assert granted.worker == W1
    assert free(node) == {"CPU": 1}


def test_as_many_leases_as_fit_are_granted_and_the_rest_goes_to_the_head(node):
    commands = node.ask(count=5)
    assert len(grants(commands)) == 2
    assert spilled(commands) == 3
    assert [asked.via for asked in sent(commands, LeaseRequested, HEAD)] == ["node-0"]


@pytest.mark.parametrize(
    ("others", "demand", "here"),
    [
        ([cpus(2)], shape(cpus(1)), 0),
        ([], shape(cpus(1)), 1),
        ([cpus(4, gpus=1)], shape(cpus(1)), 1),
        ([cpus(1)], shape(cpus(2)), 1),
        ([cpus(2)], shape(cpus(1, gpus=1)), 1),
    ],
    ids=["one could", "alone", "has GPUs itself", "too small", "needs a GPU"],
)
def test_a_node_with_gpus_asks_the_head_where_a_node_without_could_run_the_task(others, demand, here):
    node = NodeStepper(total=cpus(2, gpus=1)).with_workers(2)
    node(ClusterChanged(nodes=tuple(info(f"node-{index}", total) for index, total in enumerate(others))))
    commands = node.ask(demand)
    assert (len(grants(commands)), spilled(commands)) == (here, 1 - here)


@pytest.mark.parametrize(
    "demand",
    [
        shape(cpus(3)),
        shape(cpus(0, disk=1)),
        shape(strategy=Strategy(kind=StrategyKind.SPREAD)),
        shape(strategy=Strategy(kind=StrategyKind.NODE_AFFINITY, node=NodeID("node-0"))),
        shape(deps=(hint(oid(9), 2 * 1024 * 1024),)),
    ],
    ids=["too large", "unknown resource", "spread", "affinity", "large arguments elsewhere"],
)
def test_what_the_head_should_place_goes_to_the_head(node, demand):
    commands = node.ask(demand)
    assert spilled(commands) == 1
    assert not grants(commands)


def test_small_arguments_elsewhere_are_brought_here(node):
    commands = node.ask(shape(deps=(hint(oid(9), 1000),)))
    assert spilled(commands) == 0
    assert len(sent(commands, LocationsWanted, HEAD)) == 1


def test_large_arguments_that_are_here_keep_the_task_here():
    node = NodeStepper(store_bytes=10**8).with_workers(1)
    node.store(oid(9), 10**7)
    assert len(grants(node.ask(shape(deps=(hint(oid(9), 10**7),))))) == 1


def test_nobody_overtakes_what_waits_here(node):
    node.ask(shape(cpus(2), name="g"))
    node.ask(shape(cpus(2), name="g"), placed=True)
    commands = node.ask(shape(NOTHING))
    assert spilled(commands) == 1


def test_what_the_head_has_placed_here_waits_here(node):
    node.ask(count=2)
    commands = node.ask(placed=True)
    assert spilled(commands) == 0
    assert not grants(commands)
    assert len(grants(node(returned(0)))) == 1


@pytest.mark.parametrize("lives", [(0, 1), (1, 0)])
def test_what_the_head_has_placed_on_another_life_of_this_node_is_not_taken(lives):
    meant_for, here = lives
    node = NodeStepper(total=cpus(2), incarnation=here).with_workers(2)
    assert node.ask(placed=True, incarnation=meant_for) == []
    assert len(grants(node.ask(placed=True, incarnation=here, count=2))) == 2


def test_of_what_waits_the_first_that_fits_goes_first(node):
    node.ask(request="a", count=2)
    node.ask(shape(cpus(2), name="g"), placed=True, request="b")
    node.ask(shape(name="h"), placed=True, request="c")
    assert [granted.request_id for granted in sent(node(returned(0)), LeaseGranted)] == ["c"]
    assert grants(node(returned(1))) == []
    assert [granted.request_id for granted in sent(node(returned(2)), LeaseGranted)] == ["b"]


def test_an_actors_lease_needs_its_placement_free_and_holds_its_resources(node):
    actor = shape(NOTHING, placement=cpus(1))
    assert len(grants(node.ask(actor))) == 1
    assert free(node) == {"CPU": 2}


# ---- Arguments -----------------------------------------------------------------------------------------------------


def test_a_lease_waits_for_its_arguments_and_holds_nothing_meanwhile(node):
    node.ask(shape(deps=(hint(oid(9)),)))
    assert free(node) == {"CPU": 2}
    node.locations(oid(9), "node-1")
    assert len(grants(node(ObjectReceived(object_id=oid(9), source=NodeID("node-1"))))) == 1


def test_a_leases_arguments_stay_pinned_until_it_is_returned(node):
    node.store(oid(9))
    node.ask(shape(deps=(hint(oid(9)),)))
    assert node.machine.store.objects[oid(9)].pins
    node(returned(0))
    assert not node.machine.store.objects[oid(9)].pins


def test_an_argument_that_can_not_come_refuses_the_lease(node):
    node.ask(shape(deps=(hint(oid(9)),)))
    lost = error(ErrorKind.OBJECT_LOST, "gone")
    commands = node(ObjectFailed(object_id=oid(9), error=lost))
    assert sent(commands, LeaseRefused, DRIVER) == [LeaseRefused(request_id="driver-1#0", count=1, error=lost)]


# ---- Workers -------------------------------------------------------------------------------------------------------


def test_a_node_starts_a_worker_for_each_cpu_when_it_is_welcome():
    node = NodeStepper(total=cpus(3), workers_prestarted=-1)
    assert of(node.join(), StartWorker) == [StartWorker(worker=f"node-0/w{number}") for number in range(3)]


def test_the_workers_of_a_later_life_have_names_of_their_own():
    node = NodeStepper(total=cpus(1), incarnation=2, workers_prestarted=1)
    assert of(node.join(), StartWorker) == [StartWorker(worker="node-0~2/w0")]


def test_a_worker_is_started_when_a_lease_needs_one():
    node = NodeStepper()
    commands = node.ask(count=2)
    assert [start.worker for start in of(commands, StartWorker)] == [W0, W1]
    assert grants(node.ready(0)) == [W0]


def test_no_more_workers_start_at_once_than_the_limit():
    node = NodeStepper(total=cpus(9), worker_starts_max=2)
    assert len(of(node.ask(count=9), StartWorker)) == 2
    assert len(of(node.ready(0), StartWorker)) == 1


def test_a_worker_that_is_starting_already_is_waited_for():
    node = NodeStepper(workers_prestarted=1)
    node.join()
    assert of(node.ask(), StartWorker) == []
    assert len(of(node.ask(), StartWorker)) == 1


def test_the_worker_used_last_is_used_first(node):
    node.ask(count=2)
    node(returned(0), returned(1))
    assert grants(node.ask()) == [W0]


def test_a_worker_with_an_actors_remains_is_ended(node):
    node.ask()
    commands = node(returned(0, usable=False))
    assert [stop.worker for stop in of(commands, StopWorker)] == [W1]
    assert grants(node.ask(count=2)) == [W0]


def test_a_lease_is_returned_once(node):
    node.ask()
    node(returned(0))
    assert node(returned(0)) == []


def test_when_a_leased_worker_dies_its_owner_and_the_head_are_told_why(node):
    node.ask()
    commands = node(exited(W1, "exit code 3"))
    (died,) = sent(commands, LeasedWorkerDied, DRIVER)
    assert died.lease_id == "node-0~0/lease0"
    assert died.error.message == "Worker node-0/w1 died: exit code 3."
    assert sent(commands, WorkerDied, HEAD) == [WorkerDied(worker=W1, node="node-0", reason="exit code 3")]
    assert free(node) == {"CPU": 2}


def test_when_an_idle_worker_dies_it_is_not_leased_any_more(node):
    node(exited(W1))
    assert grants(node.ask()) == [W0]


def test_a_worker_that_dies_while_starting_is_replaced():
    node = NodeStepper()
    node.ask()
    assert [start.worker for start in of(node(exited()), StartWorker)] == [W1]
    assert grants(node.ready(1)) == [W1]


def test_when_too_many_workers_die_while_starting_the_leases_are_refused():
    node = NodeStepper(worker_start_failures_max=2)
    node.ask()
    node(exited(W0))
    commands = node(exited(W1, "no libc"))
    (refused,) = sent(commands, LeaseRefused, DRIVER)
    assert refused.error.kind is ErrorKind.WORKER_CRASHED
    assert refused.error.message == "2 workers in a row died while starting on node-0; the last: no libc."
    assert free(node) == {"CPU": 2}
    assert of(commands, StartWorker) == []


def test_one_worker_that_starts_well_ends_the_row():
    node = NodeStepper(worker_start_failures_max=2)
    node.ask(count=2)
    node(exited(W0))
    node.ready(1)
    assert sent(node(exited("node-0/w2")), LeaseRefused) == []


def test_an_unwanted_worker_is_ended(node):
    commands = node(WorkerUnwanted(worker=W0, reason="kill(actor)"))
    assert commands == [StopWorker(worker=W0, reason="kill(actor)")]
    assert node(WorkerUnwanted(worker=Address("node-0/w7"), reason="gone already")) == []


# ---- Blocked workers -------------------------------------------------------------------------------------------------


def test_a_blocked_worker_lends_its_cpu():
    node = NodeStepper(total=cpus(1)).with_workers(2)
    node.ask()
    assert not grants(node.ask(placed=True))
    assert len(grants(node(WorkerBlocked(worker=W1)))) == 1


def test_a_worker_that_goes_on_takes_its_cpu_back_also_when_it_is_lent():
    node = NodeStepper(total=cpus(1)).with_workers(2)
    node.ask()
    node(WorkerBlocked(worker=W1))
    node.ask()
    node(WorkerUnblocked(worker=W1))
    assert free(node) == {"CPU": -1}
    assert not grants(node.ask(placed=True))
    node(returned(1))
    assert free(node) == {"CPU": 0}


def test_a_blocked_worker_keeps_its_gpu_and_its_other_resources():
    node = NodeStepper(total=cpus(1, gpus=1, disk=1)).with_workers(1)
    node.ask(shape(cpus(1, gpus=1, disk=1)))
    node(WorkerBlocked(worker=W0))
    assert free(node) == {"CPU": 1, "GPU": 0, "disk": 0}


@pytest.mark.parametrize("end", [returned(0), exited()], ids=["returned", "died"])
def test_a_lease_that_ends_while_blocked_gives_back_what_it_still_held(end):
    node = NodeStepper(total=cpus(1, gpus=1)).with_workers(1)
    node.ask(shape(cpus(1, gpus=1)))
    node(WorkerBlocked(worker=W0), end)
    assert free(node) == {"CPU": 1, "GPU": 1}


def test_an_actor_that_waits_keeps_its_cpu_until_it_lends_it(node):
    node.ask()
    node(WorkerBlocked(worker=W1, lends=False))
    assert free(node) == {"CPU": 1}
    node(WorkerBlocked(worker=W1))
    assert free(node) == {"CPU": 2}
    node(WorkerUnblocked(worker=W1))
    assert free(node) == {"CPU": 1}
    node(WorkerBlocked(worker=W1, lends=False), WorkerUnblocked(worker=W1))
    assert free(node) == {"CPU": 1}


def test_a_worker_that_is_blocked_twice_lends_its_cpu_once(node):
    node.ask()
    node(WorkerBlocked(worker=W1), WorkerBlocked(worker=W1))
    assert free(node) == {"CPU": 2}


# ---- GPUs ------------------------------------------------------------------------------------------------------------


def gpu_ids(commands) -> list[tuple[int, ...]]:
    return [granted.device_ids for granted in sent(commands, LeaseGranted)]


@pytest.fixture
def gpu_node() -> NodeStepper:
    return NodeStepper(total=cpus(8, gpus=3)).with_workers(8)


def gpu(amount: float):
    return shape(cpus(0, gpus=amount))


def test_whole_gpus_are_those_with_the_lowest_ids(gpu_node):
    assert gpu_ids(gpu_node.ask(gpu(2))) == [(0, 1)]
    assert gpu_ids(gpu_node.ask(gpu(1))) == [(2,)]


def test_shares_of_a_gpu_are_packed(gpu_node):
    assert gpu_ids(gpu_node.ask(gpu(0.5), count=3)) == [(0,), (0,), (1,)]


def test_a_share_goes_to_the_fullest_gpu_that_has_room(gpu_node):
    gpu_node.ask(gpu(0.75))
    gpu_node.ask(gpu(0.5))
    assert gpu_ids(gpu_node.ask(gpu(0.5))) == [(1,)]
    assert gpu_ids(gpu_node.ask(gpu(0.25))) == [(0,)]


def test_the_rests_of_several_gpus_are_no_whole_gpu(gpu_node):
    assert gpu_ids(gpu_node.ask(gpu(0.6), count=3)) == [(0,), (1,), (2,)]
    assert free(gpu_node)["GPU"] > 1
    assert spilled(gpu_node.ask(gpu(1))) == 1
    assert not grants(gpu_node.ask(gpu(1), placed=True))
    assert gpu_ids(gpu_node(returned(1))) == [(1,)]


def test_the_rests_of_several_gpus_are_no_large_share(gpu_node):
    gpu_node.ask(gpu(0.6), count=3)
    assert not grants(gpu_node.ask(gpu(0.8), placed=True))


def test_gpus_go_to_workers_that_have_run_nothing_and_one_is_started_if_there_is_none():
    node = NodeStepper(total=cpus(2, gpus=1)).with_workers(2)
    used = grants(node.ask(shape(cpus(1))))[0]
    node(returned(0))
    assert node.machine.scheduler.idle[-1].address == used
    fresh = grants(node.ask(gpu(0.5)))[0]
    assert fresh not in (used, None)
    commands = node.ask(gpu(0.5))
    assert not grants(commands)
    [start] = of(commands, StartWorker)
    assert grants(node(WorkerReady(worker=start.worker))) == [start.worker]


def test_actors_go_to_workers_that_have_run_nothing_and_one_is_started_if_there_is_none():
    node = NodeStepper(total=cpus(2)).with_workers(2)
    used = grants(node.ask(shape(cpus(1))))[0]
    node(returned(0))
    fresh = grants(node.ask(shape(cpus(1)), owner=HEAD))[0]
    assert fresh not in (used, None)
    commands = node.ask(shape(cpus(1)), owner=HEAD)
    assert not grants(commands)
    [start] = of(commands, StartWorker)
    assert grants(node(WorkerReady(worker=start.worker))) == [start.worker]
    assert [worker.address for worker in node.machine.scheduler.idle] == [used]


def test_who_waits_for_a_fresh_worker_keeps_nobody_from_a_used_one():
    node = NodeStepper(total=cpus(2, gpus=1)).with_workers(1)
    node.ask(shape(cpus(1)))
    node(returned(0))
    assert not grants(node.ask(gpu(1)))
    assert len(grants(node.ask(shape(cpus(1))))) == 1


def test_a_worker_that_has_had_gpus_retires_with_its_lease_and_ends_when_it_says_so():
    node = NodeStepper(total=cpus(2, gpus=1)).with_workers(1)
    worker = grants(node.ask(gpu(1)))[0]
    commands = node(returned(0))
    assert sent(commands, WorkerRetired) == [WorkerRetired(worker=worker)]
    assert free(node) == {"CPU": 2, "GPU": 1}
    assert not node.machine.scheduler.idle
    commands = node(WorkerUnwanted(worker=worker, reason="it owns nothing"))
    assert of(commands, StopWorker) == [StopWorker(worker=worker, reason="it owns nothing")]
    node(exited(worker))
    assert worker not in node.machine.scheduler.workers


def test_a_lost_gpu_takes_the_worker_that_held_it_and_is_offered_no_more(gpu_node):
    gpu_node.ask(gpu(1), count=2)
    commands = gpu_node(GpuLost(gpu=0))
    assert commands_of(commands, StopWorker) == [
        StopWorker(
            worker=gpu_node.machine.scheduler.leases[LeaseID("node-0~0/lease0")].worker.address,
            reason="GPU 0 of node-0 was lost",
        )
    ]
    assert [joined.info.total for joined in sent(commands, NodeJoined)] == [cpus(8, gpus=2)]
    gpu_node(WorkerExited(worker=commands_of(commands, StopWorker)[0].worker, reason="stopped"))
    assert free(gpu_node) == {"CPU": 8, "GPU": 1}
    assert gpu_ids(gpu_node.ask(gpu(1))) == [(2,)]
    assert gpu_node(GpuLost(gpu=0)) == []


def test_what_waits_for_more_gpus_than_are_left_goes_back_to_the_head(gpu_node):
    gpu_node.ask(gpu(1))
    assert not grants(gpu_node.ask(gpu(3), placed=True))
    commands = gpu_node(GpuLost(gpu=2))
    assert [(back.count, back.via) for back in sent(commands, LeaseRequested)] == [(1, "node-0")]
    assert [len(report.settled) for report in sent(commands, ResourcesReported)] == [1]


def test_what_was_placed_before_a_gpu_was_lost_and_can_never_be_met_now_goes_back_to_the_head(gpu_node):
    """Found by tests/kept_runs/shuffled.py, seed 252: it waited for ever."""
    gpu_node(GpuLost(gpu=2))
    commands = gpu_node.ask(gpu(3), placed=True)
    assert [(back.count, back.via) for back in sent(commands, LeaseRequested)] == [(1, "node-0")]
    assert not gpu_node.machine.scheduler.waiting


def test_a_node_with_a_part_of_a_gpu_leases_that_part():
    node = NodeStepper(total=cpus(1, gpus=0.5)).with_workers(2)
    commands = node.ask(gpu(0.25), count=3)
    assert gpu_ids(commands) == [(0,), (0,)]
    assert spilled(commands) == 1


# ---- Owners that die -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "death", [OwnerDied(address=OTHER), NodeDied(node=NodeID("node-1"), incarnation=0)], ids=["process", "node"]
)
def test_the_workers_that_a_dead_owner_had_leased_are_ended(node, death):
    node.ask(owner=OTHER)
    commands = node(death)
    assert of(commands, StopWorker) == [StopWorker(worker=W1, reason="its lease's owner node-1/w0 died")]
    node(exited(W1))
    assert free(node) == {"CPU": 2}


def test_what_a_dead_owner_waits_for_is_forgotten_and_settled(node):
    node.ask(count=2)
    node.ask(owner=OTHER, placed=True, request="node-1/w0#0")
    commands = node(OwnerDied(address=Address(OTHER)))
    assert [report.settled for report in sent(commands, ResourcesReported)] == [("node-1/w0#0",)]
    assert not grants(node(returned(0)))


def test_what_a_dead_owner_had_been_promised_goes_to_others():
    node = NodeStepper(total=cpus(1))
    node.ask(owner=OTHER, placed=True)
    node.ask(placed=True)
    node(OwnerDied(address=Address(OTHER)))
    assert [granted.request_id for granted in sent(node.ready(0), LeaseGranted)] == ["driver-1#0"]


# ---- Reports ---------------------------------------------------------------------------------------------------------


def test_the_head_is_told_what_is_free_when_it_changes(node):
    (report,) = sent(node.ask(), ResourcesReported, HEAD)
    assert report == ResourcesReported(node="node-0", incarnation=0, available={"CPU": 10_000}, held={"driver-1": 1})
    (report,) = sent(node(returned(0)), ResourcesReported, HEAD)
    assert report.available == {"CPU": 20_000}


def test_each_lease_that_the_head_has_placed_is_settled_once(node):
    commands = node.ask(placed=True, count=2, request="a")
    commands += node(returned(0), returned(1))
    assert [request for report in sent(commands, ResourcesReported) for request in report.settled] == ["a", "a"]


def test_what_is_allocated_is_reported_before_its_worker_has_started():
    node = NodeStepper(total=cpus(2))
    actor = shape(NOTHING, placement=cpus(1))
    (report,) = sent(node.ask(actor, placed=True, request="a"), ResourcesReported)
    assert (report.allocated, report.settled, report.available) == (("a",), (), {"CPU": 20_000})
    commands = node.ready(0)
    assert sent(commands, ResourcesReported) == []
    assert ArmTimer(timer=REPORT_TIMER, delay_ns=node.machine.config.report_ns) in commands
    (report,) = sent(node(TimerFired(timer=REPORT_TIMER)), ResourcesReported)
    assert (report.allocated, report.settled) == ((), ("a",))
    assert sent(node(TimerFired(timer=REPORT_TIMER)), ResourcesReported) == []


def test_what_may_be_reported_later_goes_with_what_may_not():
    node = NodeStepper(total=cpus(2))
    node.ask(shape(cpus(1)), placed=True, request="a")
    node.ready(0)
    (report,) = sent(node.ask(shape(cpus(1)), placed=True, request="b"), ResourcesReported)
    assert (report.allocated, report.settled) == (("b",), ("a",))
    assert sent(node(TimerFired(timer=REPORT_TIMER)), ResourcesReported) == []


def test_leases_that_are_granted_at_once_come_in_one_message(node):
    (granted,) = [each.message for each in commands_of(node.ask(count=2), Send) if each.to == DRIVER]
    assert isinstance(granted, LeasesGranted)
    assert len(granted.leases) == 2
    commands = node(LeasesReturned(lease_ids=tuple(lease.lease_id for lease in granted.leases)))
    assert [report.available for report in sent(commands, ResourcesReported)] == [{"CPU": 20_000}]


def test_what_a_dead_driver_has_asked_for_is_not_granted(node):
    node(OwnerDied(address=DRIVER))
    assert grants(node.ask()) == []


def test_what_was_granted_here_without_the_head_is_not_settled(node):
    commands = node.ask()
    assert [report.settled for report in sent(commands, ResourcesReported)] == [()]


def test_nothing_is_reported_when_nothing_has_changed(node):
    assert sent(node(exited("node-0/w9")), ResourcesReported) == []


# ---- What must hold in every order -----------------------------------------------------------------------------------


demands = st.sampled_from(
    [
        shape(cpus(1)),
        shape(cpus(0.5)),
        shape(cpus(1, gpus=0.25)),
        shape(cpus(0, gpus=1)),
        shape(NOTHING, placement=cpus(1)),
    ]
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), demands, st.integers(1, 4), st.booleans()),
        st.tuples(st.sampled_from(["return", "die", "block", "unblock", "ready"]), st.integers(0, 9)),
    ),
    max_size=40,
)


@given(steps)
def test_each_lease_asked_for_is_granted_or_handed_on_and_all_comes_back(steps):
    node = NodeStepper(total=cpus(2, gpus=2), workers_prestarted=1)  # the stepper checks the books after each step
    node.join()
    asked = granted = handed_on = 0
    live: list[LeaseGranted] = []
    for step in steps:
        commands = []
        workers = list(node.machine.scheduler.workers)
        match step:
            case ("ask", demand, count, placed):
                asked += count
                commands = node.ask(demand, count=count, placed=placed)
            case ("return", pick) if live:
                commands = node(LeaseReturned(lease_id=live.pop(pick % len(live)).lease_id))
            case ("ready", pick) if workers:
                commands = node(WorkerReady(worker=workers[pick % len(workers)]))
            case ("die", pick) if workers:
                dead = workers[pick % len(workers)]
                live = [lease for lease in live if lease.worker != dead]
                commands = node(exited(dead))
                handed_on += sum(refused.count for refused in sent(commands, LeaseRefused))
            case ("block", pick) if live:
                commands = node(WorkerBlocked(worker=live[pick % len(live)].worker))
            case ("unblock", pick) if live:
                commands = node(WorkerUnblocked(worker=live[pick % len(live)].worker))
        new = sent(commands, LeaseGranted)
        live += new
        granted += len(new)
        handed_on += spilled(commands)
    scheduler = node.machine.scheduler
    assert granted + handed_on + len(scheduler.waiting) + len(scheduler.unstaffed) == asked
    for _ in range(200):
        for worker in list(scheduler.workers):
            live += sent(node(WorkerReady(worker=worker)), LeaseGranted)
        if not live:
            break
        live += sent(node(LeaseReturned(lease_id=live.pop().lease_id)), LeaseGranted)
    assert not scheduler.leases
    assert not scheduler.waiting
    assert free(node) == {"CPU": 2, "GPU": 2}
