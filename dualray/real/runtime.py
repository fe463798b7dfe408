"""Real mode's way in: `init()` starts a head and a node on this machine and stops them at exit; `init(address=...)`
joins a cluster through the node that it has on this machine, and starts and stops nothing.

What takes long begins first: the founder is started before this process imports what a driver needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualray.exceptions import DualrayError
from dualray.real.limits import (
    check_open_files,
    is_out_of_threads,
    limit_in_words,
    open_standard_streams,
    raise_open_files,
)
from dualray.real.processes.offer import check_port, store_bytes, total_of
from dualray.real.session import session as sessions
from dualray.real.session.children import Children
from dualray.shared.labels import labels_of_nodes
from dualray.shared.model.config import Config
from dualray.shared.model.ids import Address

if TYPE_CHECKING:
    from dualray.real.observe.log_reader import LogReader
    from dualray.real.processes.driver import RealRuntime


def start(settings: Mapping[str, Any], config: Config) -> RealRuntime:
    """Start a cluster on this machine, or join the one that `address` names.

    Raises:
        ValueError: resources that are wrong, before anything has been started; settings that a cluster has already.
        DualrayError: a process did not start; the message has the last lines of its log. There is no such cluster, or
            it has no node on this machine.
    """
    if settings["address"] is not None:
        if settings["record"] is not None:
            raise ValueError("record=... works only if this init() starts the cluster; leave out record= or address=")
        return _join(settings)
    open_standard_streams()
    raise_open_files()
    check_open_files()
    total, device_names = total_of(
        settings["num_cpus"], settings["num_gpus"], settings["resources"], settings["memory"]
    )
    session = sessions.create(
        config=config,
        seed=settings["seed"],
        job_root=str(settings["object_id_seed"] or ""),
        total=total,
        labels=labels_of_nodes(settings["labels"], 1)[0],
        device_names=device_names,
        store_bytes=store_bytes(settings["object_store_memory"]),
        log_to_driver=settings["log_to_driver"] and not settings["redirect_output"],
        log_directory=_made(settings["log_directory"]),
        redis_shards=settings["num_redis_shards"],
        metrics_port=check_port(settings["metrics_port"], "metrics_port"),
        record_directory=_made(settings["decision_log"]),
        has_notes=settings["record"] is not None,
    )
    children = Children(session)
    try:
        children.start()
        from dualray.real.processes.driver import RealRuntime  # noqa: PLC0415 - while the founder imports, too

        runtime = RealRuntime(session, children=children, namespace=settings["namespace"] or "")
        if settings["record"] is not None:
            from dualray.real.processes.run_recorder import RunNotes  # noqa: PLC0415 - only who records needs it

            runtime.record = RunNotes(settings["record"])
    except BaseException:
        children.end()
        session.remove()
        raise
    return _started(runtime, settings)


def _join(settings: Mapping[str, Any]) -> RealRuntime:
    """Take part in a running cluster as one more driver."""
    from dualray.real.cluster.joining import find_session, next_beside_the_first  # noqa: PLC0415 - few join
    from dualray.real.processes.driver import RealRuntime  # noqa: PLC0415 - as above

    open_standard_streams()
    raise_open_files()
    check_open_files()
    session = find_session(settings["address"])
    if session.cluster is None:
        number = next_beside_the_first(session)
    else:
        from dualray.real.cluster.address import next_driver  # noqa: PLC0415 - few join

        number = next_driver(session)
    return _started(
        RealRuntime(
            dataclasses.replace(
                session,
                job_root=str(settings["object_id_seed"] or session.job_root),
                log_to_driver=settings["log_to_driver"] and not settings["redirect_output"],
                record_directory=_made(settings["decision_log"]) or session.record_directory,
            ),
            children=None,
            driver=Address(f"driver-{number}@{session.node}"),
            job=number,
            namespace=settings["namespace"] or "",
        ),
        settings,
    )


def _started(runtime: RealRuntime, settings: Mapping[str, Any]) -> RealRuntime:
    runtime.core.runtime_env = settings["runtime_env"] or ""
    try:
        runtime.start()
    except RuntimeError as error:
        runtime.shutdown()
        if is_out_of_threads(error):
            raise DualrayError(limit_in_words(error)) from error
        raise
    except BaseException:
        runtime.shutdown()
        raise
    return runtime


def _made(directory: Path | None) -> Path | None:
    if directory is not None:
        directory = directory.absolute()
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def logs_of_this_machine() -> LogReader:
    """The log files of the cluster that runs here, and logs that were kept."""
    from dualray.real.observe.log_reader import LogReader  # noqa: PLC0415 - few ask

    return LogReader(None)
