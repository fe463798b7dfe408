"""Sim mode's runtime: `init(mode="sim")` makes a virtual cluster and turns the caller into its driver."""

from __future__ import annotations

import json
import sys
import warnings

# By name: a simulation replaces what stands in the module `atexit`.
from atexit import register, unregister
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dualray.core_verbs import VerbsOverCore
from dualray.progress_bars import DISPLAY, BarState
from dualray.shared.core.core_worker import CoreWorker, write_row
from dualray.shared.labels import as_pairs, labels_of_nodes
from dualray.shared.model.accelerators import Names, with_types
from dualray.shared.model.config import Config
from dualray.shared.model.demands import parse_resources
from dualray.shared.model.ids import FunctionID, root_task_id
from dualray.shared.model.resources import MEMORY_SHARE_PERCENT, add, node_resources
from dualray.shared.proof.trace import TraceEvent
from dualray.shared.scenario.cluster import ClusterModel
from dualray.shared.scenario.growth import Growth
from dualray.sim.cluster.cluster import DRIVER_NODE, Cluster, make_cluster
from dualray.sim.cluster.examination import Examination, examine
from dualray.sim.cluster.growth_examination import GrowthWatch
from dualray.sim.cluster.planned_nodes import PlannedAddress
from dualray.sim.cluster.provider import MachineGroup, Provider
from dualray.sim.cluster.run_summary import never_happened, summarise
from dualray.sim.network.topologies import Nic
from dualray.sim.processes.entering import (
    are_threads_said,
    enter_process,
    leave_process,
    show_gpus,
    show_threads,
    shown_gpus,
)
from dualray.sim.processes.node import Hardware
from dualray.sim.processes.worker import UserProcess
from dualray.sim.processes.worker_runtime import VIRTUAL_PORT, no_logs
from dualray.sim.processes.worker_streams import UnheardWorkers
from dualray.sim.usercode.process_calls import ip_of
from dualray.sim.usercode.program_clock import PROGRAM_CLOCK
from dualray.user_metrics import METRICS
from dualray.visible_devices import names_for_ray

if TYPE_CHECKING:
    # It imports pydantic, which a run without a scenario does not need.
    from dualray.shared.scenario.cluster import NodeGroup
    from dualray.shared.scenario.scenario import Scenario
    from dualray.sim.cluster.run_recorder import RunRecorder

DEFAULT_CPUS = 4
DEFAULT_STORE_BYTES = 2 * 1024**3
OFFERED_MEMORY_BYTES = 16 * 1024**3 * MEMORY_SHARE_PERCENT // 100
"""That a node offers to tasks that say `memory=`: 70 % of 16 GiB."""


class SimRuntime:
    """The driver's runtime. `cluster` is the virtual cluster: for tests, tables and faults."""

    mode = "sim"
    owns_interpreter = False
    models_calls = True
    threads_may_wait = False

    def __init__(
        self, cluster: Cluster, driver: UserProcess, report: Path | None = None, summary: Path | None = None
    ) -> None:
        self.cluster = cluster
        self._driver = driver
        self.core: CoreWorker = driver.core
        self.verbs = VerbsOverCore(self.core, driver.device_names)
        self._report = report
        self._summary = summary
        self.record: RunRecorder | None = None
        """Makes the record of this run, at the end."""
        self.warns_of_faults = False
        """Whether the program itself has given faults, so that somebody must tell it of those that never happened."""

    @property
    def device_names(self) -> Names:
        return self._driver.device_names

    @property
    def logs(self) -> NoReturn:
        raise no_logs()

    def free_port(self) -> int:
        return VIRTUAL_PORT

    @property
    def now_s(self) -> float:
        """Seconds of virtual time since `init`."""
        return self.cluster.kernel.now_ns / 1e9

    def examine(self) -> Examination:
        """End the faults, let everything come to rest, and see what is left; the last thing to do before `shutdown`."""
        return examine(self.cluster)

    def addresses(self) -> dict[str, str]:
        return self._driver.addresses()

    def read_table(self, name: str) -> dict[str, dict[str, str]]:
        return self._driver.read_table(name)

    def write_row(self, table: str, key: str, fields: Mapping[str, str]) -> None:
        write_row(self.core, table, key, fields)

    def read_functions(self) -> dict[FunctionID, bytes]:
        return dict(self.cluster.functions.pickled)

    def raise_in_driver(self, error: BaseException) -> None:
        """The OS process got a signal while a thread of the driver's ran, or the driver itself."""
        self.cluster.fibers.throw_into_driver(error)

    def trace_source(self) -> Sequence[TraceEvent]:
        return self.cluster.trace_events

    def show_bar(self, state: BarState) -> None:
        if self.cluster.shows_bars:
            DISPLAY.take("", state)

    def silence(self) -> None:
        self._driver.is_silent = True

    def end_in_fork(self) -> bool:
        self.core.close()
        return True

    def shutdown(self) -> None:
        fibers = self.cluster.fibers
        if fibers.current() is not fibers.driver:
            raise RuntimeError("a thread called dualray.shutdown(), but only the main thread can end a simulation")
        unregister(self.shutdown)
        ended_ns = self.cluster.kernel.now_ns
        never = never_happened(self.cluster) if self.warns_of_faults else []
        try:
            self.core.tell_unread_failures()
            if self.record is not None:
                self.record.write(self.cluster, ended_ns)
            if self._summary is not None:
                with self._summary.open("a") as file:
                    file.write(json.dumps(summarise(self.cluster, ended_ns)) + "\n")
            if self._report is not None:
                trace = [event.row() for event in self.cluster.trace_events]
                self._report.write_text(json.dumps({"examination": self.examine()._asdict(), "trace": trace}))
        finally:
            self.cluster.close()
            PROGRAM_CLOCK.move_to(ended_ns)
            DISPLAY.forget()
            METRICS.clear()
            show_gpus(self._driver.visible_gpus)  # tasks that had not ended came after the driver
            if self._driver.library_threads is not None:
                show_threads(self._driver.library_threads)
            if self._driver.environment is not None:
                self._driver.environment.enter()
        if never:
            warnings.warn(f"these faults of init() never happened: {'; '.join(never)}", stacklevel=3)


def _warn_of_coverage() -> None:
    if getattr(sys.gettrace(), "concur_id_func", True) is None:  # coverage's tracer, which follows threads only
        warnings.warn(
            "coverage traces threads, but sim mode runs tasks on greenlets, so coverage will miss lines. Use "
            "`coverage run --concurrency=greenlet`, or concurrency = greenlet under [run] in its configuration.",
            stacklevel=4,
        )


def start(settings: Mapping[str, Any], config: Config) -> SimRuntime:
    """Make a cluster; the calling greenlet becomes its driver.

    Raises:
        ValueError: resources or faults that are wrong, before anything has been started.
    """
    hardware = _hardware(settings)
    _warn_of_coverage()
    root = root_task_id(str(settings["object_id_seed"] or ""), 1)
    growing = _growing(settings)
    if isinstance(growing, Growth):
        said = settings["limits"] or {}
        config = replace(config, **{name: value for name, value in growing.limits.items() if name not in said})
    groups = _groups_that_join(growing, config)
    cluster = make_cluster(settings, config)
    record = _recorder(settings["record"], cluster)
    if groups:
        cluster.provider = cluster.head.launcher = Provider(cluster, groups, seed=cluster.seed)
        autoscaler = cluster.head.control.autoscaler
        assert autoscaler is not None
        cluster.growth = GrowthWatch(autoscaler)
        cluster.groups = {name: group.hardware for name, group in groups.items()}
    cluster.shown_gpus, cluster.device_names = shown_gpus(), names_for_ray()
    driver = cluster.start(nodes=hardware, root=root, namespace=settings["namespace"] or "")
    scenario: Scenario | None = settings["scenario"]
    planned = scenario.planned() if scenario is not None else ()
    cluster.faults.plan((*planned, *settings["faults"]), driver_node=DRIVER_NODE)
    started = SimRuntime(cluster, driver, settings["run_report"], settings["run_summary"])
    started.record = record
    started.warns_of_faults = bool(settings["faults"]) and settings["run_summary"] is None
    if isinstance(settings["address"], PlannedAddress):
        settings["address"].plan.begin(cluster)
    started.core.runtime_env = settings["runtime_env"] or ""
    driver.runtime = started
    driver.visible_gpus = shown_gpus()
    if not are_threads_said():
        cluster.counts_threads = True
        driver.library_threads = b""
    cluster.fibers.on_resume, cluster.fibers.on_suspend = enter_process, leave_process
    if not settings["log_to_driver"]:
        cluster.shows_bars = False
        unheard = UnheardWorkers()
        cluster.fibers.on_resume, cluster.fibers.on_suspend = unheard.enter, unheard.leave
    cluster.isolate(allows_outside=settings["sim_unsafe"] == "allow")
    try:
        cluster.fibers.adopt_current(driver, seed=b"%d:driver" % cluster.seed)
        cluster.wait_until_ready()
        if record is not None:
            record.program_begins(cluster)
            register(started.shutdown)  # a program that ends without `shutdown` has a record too, as in real mode
    except BaseException:
        cluster.close()
        raise
    return started


def _recorder(path: Path | None, cluster: Cluster) -> RunRecorder | None:
    if path is None:
        return None
    from dualray.sim.cluster.run_recorder import RunRecorder  # noqa: PLC0415 - only who records needs it

    return RunRecorder(path, cluster)


def _hardware(settings: Mapping[str, Any]) -> list[Hardware]:
    """Every node's, in order: as the `Cluster` at an address or the scenario describes them, else all alike."""
    if isinstance(settings["address"], PlannedAddress):
        return settings["address"].plan.hardware()
    scenario: Scenario | None = settings["scenario"]
    if scenario is not None:
        return hardware_of_scenario(scenario)
    num_cpus = settings["num_cpus"]
    total = parse_resources(
        num_cpus=DEFAULT_CPUS if num_cpus is None else num_cpus,
        num_gpus=settings["num_gpus"],
        memory=OFFERED_MEMORY_BYTES if settings["memory"] is None else settings["memory"],
        resources=settings["resources"],
    )
    store_bytes = settings["object_store_memory"] or DEFAULT_STORE_BYTES
    labels = labels_of_nodes(settings["labels"], settings["nodes"])
    return [
        Hardware(
            total=add((with_types(total), node_resources(ip_of(f"node-{index}"), is_head=index == 0))),
            store_bytes=store_bytes,
            labels=each,
        )
        for index, each in enumerate(labels)
    ]


def hardware_of_scenario(scenario: Scenario | Growth) -> list[Hardware]:
    """Every node's, in order; nodes that are alike share it."""
    groups = [group for _, group in scenario.cluster.each_node()]
    kinds = {id(group): group for group in groups}
    hardware = {kind: _hardware_of_group(group) for kind, group in kinds.items()}
    return [hardware[id(group)] for group in groups]


def _growing(settings: Mapping[str, Any]) -> Scenario | Growth | None:
    """What says which groups of nodes there are, if anything does."""
    if isinstance(settings["address"], PlannedAddress):
        return settings["address"].plan.growth
    scenario: Scenario | None = settings["scenario"]
    return scenario


def _groups_that_join(growing: Scenario | Growth | None, config: Config) -> dict[str, MachineGroup]:
    """What the provider has. Raises ValueError: nodes of a group would never join."""
    if growing is None:
        return {}
    for name, reason in growing.cluster.never_join(config.launch_timeout_ns).items():
        raise ValueError(f"group {name}: {reason}")
    return machine_groups(growing.cluster)


def machine_groups(cluster: ClusterModel) -> dict[str, MachineGroup]:
    """What the provider has of each group that grows and shrinks."""
    said = cluster.scaling
    return {
        name: MachineGroup(
            hardware=_hardware_of_group(group),
            start_up=said[name].start_up,
            refused=said[name].refused,
            stuck=said[name].stuck,
            quota=said[name].quota,
            reclaimed=said[name].reclaimed,
            notice_ns=said[name].notice,
            price=round(said[name].price * 1_000_000),
            shut_down=said[name].shut_down,
            paid_least_ns=said[name].paid_least,
        )
        for name, group in cluster.scaled().items()
    }


def _hardware_of_group(group: NodeGroup) -> Hardware:
    return Hardware(
        total=group.total,
        store_bytes=group.object_store,
        speed=group.speed,
        memory_bytes=group.memory or 0,
        nic=Nic(bytes_per_s=group.network.bandwidth, latency_ns=group.network.latency // 2),
        labels=as_pairs(group.labels),
        worker_start_ns=group.worker_start,
        disk_bytes_per_s=group.disk,
        gpu_memory_bytes=group.gpu_memory or 0,
    )
