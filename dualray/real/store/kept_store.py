"""The objects that survive a reboot: they lie in the arena of a life that is over, and return with the next one.

Theory of operation. Before the machine goes off, its node manager lists what it has (`list_of`). The daemon puts the
arena of that life aside (KEPT_ARENA_FILE); the node manager of the next life reserves room for each object of the list,
as for a process that writes one, copies it, and reports it to the head like any other. What the head does not want any
more it has deleted. What there is no room for is left out.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Final

from dualray.real import files
from dualray.real.store.arena import Arena
from dualray.real.store.node_store import NodeStore
from dualray.shared.machines.node.node import Node
from dualray.shared.model.events import SpaceRequested
from dualray.shared.model.ids import Address, ObjectID

KEPT_ARENA_FILE: Final = "kept-arena"
KEPT_LIST_FILE: Final = "kept-objects"
"""In the store's directory."""

Row = dict[str, Any]


def list_of(machine: Node) -> list[Row]:
    """What is complete in the node's store, in memory or on disk."""
    return [
        {
            "id": stored.object_id.hex(),
            "size": stored.size_bytes,
            "owner": stored.owner,
            "remakeable": stored.remakeable,
            "is_spilled": is_spilled,
        }
        for stored, is_spilled in machine.complete_objects()
    ]


def write_list(directory: Path, rows: list[Row]) -> None:
    """For the next life."""
    with contextlib.suppress(FileNotFoundError):
        (directory / KEPT_LIST_FILE).unlink()
    files.write(directory / KEPT_LIST_FILE, json.dumps(rows).encode())


class KeptStore:
    """See the module: what the last life of a node has left, for the node manager of the next one.

    Args:
        directory: of the store.
        spilled: the directory of the spilled objects.
    """

    def __init__(self, directory: Path, spilled: Path) -> None:
        self._directory = directory
        self._spilled = spilled
        self._rows: list[Row] = json.loads(files.read(directory / KEPT_LIST_FILE))
        self._arena = Arena.attach(directory / KEPT_ARENA_FILE)

    @classmethod
    def found(cls, directory: Path, spilled: Path) -> KeptStore | None:
        """None when the last life has left nothing."""
        if not (directory / KEPT_ARENA_FILE).exists():
            return None
        return cls(directory, spilled)

    def requests(self, finder: Address) -> list[SpaceRequested]:
        """For room, in the name of `finder`."""
        return [
            SpaceRequested(
                object_id=ObjectID(bytes.fromhex(row["id"])),
                size_bytes=row["size"],
                owner=Address(row["owner"]),
                requester=finder,
                remakeable=row["remakeable"],
            )
            for row in self._rows
        ]

    def put_back(self, store: NodeStore, object_id: ObjectID, size_bytes: int) -> bool:
        """Copy one into the place that it has been given; whether its bytes were found."""
        found = self._arena.find(object_id)
        if found is not None:
            return store.write(object_id, self._arena.read_view(found[0], size_bytes).data)
        try:
            data = files.read(self._spilled / object_id.hex())
        except OSError:
            return False
        return len(data) == size_bytes and store.write(object_id, data)

    def close(self) -> None:
        """Nothing more is wanted of it."""
        self._arena.close()
        for name in (KEPT_ARENA_FILE, KEPT_LIST_FILE):
            (self._directory / name).unlink(missing_ok=True)
