"""The index of an arena: a dict in shared memory, and files that are no arena."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dualray.real import files
from dualray.real.store.arena import PAGE, Arena, Layout
from dualray.real.store.node_store import MIB


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 90)), max_size=300))
@settings(deadline=None, max_examples=50)
def test_the_index_is_a_dict(steps: list[tuple[bool, int]]) -> None:
    path = Path(f"/dev/shm/dualray-{os.getpid()}-index/arena")
    files.make_directory(path.parent)
    arena = Arena.create(path, Layout.of(capacity=MIB, size_min=100, objects_max=40))
    reader = Arena.attach(path)
    files.remove_directory(path.parent)
    plain: dict[bytes, tuple[int, int]] = {}
    for inserts, number in steps:
        object_id = bytes([number]) * (1 + number % 40)
        if object_id in plain:
            arena.remove(object_id)
            del plain[object_id]
        elif inserts:
            place = (number * 64, number)
            assert arena.insert(object_id, *place) == (len(plain) < 64)
            if len(plain) < 64:
                plain[object_id] = place
        else:
            with pytest.raises(KeyError):
                arena.remove(object_id)
        assert {name: reader.find(name) for name in plain} == plain
        assert reader.find(bytes([number]) * 39 + b"x") is None
    for name in plain:
        arena.remove(name)
    assert not any(arena.writable[PAGE + 64 * slot] for slot in range(64)), "no slot is passed for ever"
    arena.close()
    reader.close()


def test_what_is_no_arena_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "arena"
    path.write_bytes(b"something else" * 10)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="is not the file of an object store"):
        Arena.attach(path)
    path.write_bytes(b"dualray\0" + (99).to_bytes(8, "little") + bytes(24))
    with pytest.raises(ValueError, match="of format 99"):
        Arena.attach(path)
    with pytest.raises(FileNotFoundError):
        Arena.attach(tmp_path / "none")
    with pytest.raises(FileExistsError):
        Arena.create(path, Layout.of(capacity=MIB, size_min=100, objects_max=40))
