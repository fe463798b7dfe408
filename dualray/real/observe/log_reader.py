"""The log files of this machine, as `dualray.util.state` asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dualray.real.observe import log_files
from dualray.real.observe.log_files import LogPlace, LogQuery
from dualray.real.session.session import all_running


class LogReader:
    """See dualray/runtime.py.

    Args:
        store_directory: of the object store of the cluster that this process is part of; None: it is part of none, and
            the logs are those of the one cluster that runs on this machine.
    """

    def __init__(self, store_directory: str | None) -> None:
        self._store_directory = store_directory

    def names(self, verb: str, node_id: str | None, pattern: str, directory: Path | None) -> dict[str, list[str]]:
        """The names of the files, by what they are of."""
        groups: dict[str, list[str]] = {}
        for place in self._places(verb, node_id, directory):
            for entry in place.files(pattern):
                groups.setdefault(entry.group, []).append(entry.name)
        return groups

    def read(
        self,
        verb: str,
        *,
        node_id: str | None,
        directory: Path | None,
        filename: str | None,
        actor_id: str | None,
        task_id: str | None,
        pid: int | None,
        attempt: int | None,
        stream: str,
        tail: int,
        follow: bool,
    ) -> Iterator[bytes]:
        """What is in one file, or what an actor, task or process has printed, in chunks.

        Raises:
            ValueError: there is nothing like it, or there are several.
        """
        places = self._places(verb, node_id, directory)
        if filename is not None:
            query = _of_file(places, filename)
        elif actor_id is not None:
            query = log_files.of_actor(places, actor_id, stream=stream, may_come=follow)
        elif task_id is not None:
            query = log_files.of_task(places, task_id, attempt=attempt, stream=stream, may_come=follow)
        else:
            assert pid is not None
            query = log_files.of_pid(places, pid, stream=stream)
        return log_files.read(query, tail=tail, follow=follow)

    def _places(self, verb: str, node_id: str | None, directory: Path | None) -> list[LogPlace]:
        """Of kept logs, of this process's cluster, or of the one that runs here."""
        if directory is not None:
            places = log_files.places_in(directory)
        elif self._store_directory is None:
            places = log_files.places_here()
            clusters = {place.cluster for place in places}
            if len(clusters) != 1:
                raise ValueError(
                    f"{verb} cannot choose a cluster, because {len(clusters)} clusters run on this machine. Join "
                    "one cluster with dualray.init(address=...), or pass directory=, the directory of a cluster's "
                    "logs"
                )
        else:
            sessions = all_running()
            own = [session for session in sessions if str(session.store_directory) == self._store_directory]
            clusters = {log_files.cluster_of(session) for session in own}
            places = log_files.places_here(session for session in sessions if log_files.cluster_of(session) in clusters)
        return log_files.chosen(places, session=None, node=node_id)


def _of_file(places: Sequence[LogPlace], name: str) -> LogQuery:
    entries = log_files.find_files(places, log_files.literally(name))
    if len(entries) > 1:
        owners = ", ".join(f"{entry.node} of {entry.session}" for entry in entries)
        raise ValueError(f"several nodes have a file {name!r}: {owners}. Choose one with node_id= or directory=")
    return log_files.of_file(entries[0], places)
