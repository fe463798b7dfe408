import errno
import gc
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualray.real.object_store import SharedMemoryStore

ID = bytes(range(20))
OTHER = b"\xff" * 20


@pytest.fixture
def store() -> Iterator[SharedMemoryStore]:
    directory = Path(f"/dev/shm/dualray-test-{os.getpid()}-{random.Random().randrange(1 << 30):x}")
    store = SharedMemoryStore(directory)
    yield store
    store.destroy()
    store.destroy()
    assert not directory.exists()


def put(store: SharedMemoryStore, object_id: bytes, data: bytes) -> None:
    store.create(object_id, len(data))[:] = data
    store.seal(object_id)


def test_an_object_appears_when_it_is_sealed(store: SharedMemoryStore) -> None:
    view = store.create(ID, 5)
    assert (len(view), view.readonly, store.contains(ID), store.list()) == (5, False, False, [])
    with pytest.raises(FileNotFoundError):
        store.open(ID)
    view[:] = b"hello"
    store.seal(ID)
    assert (bytes(store.open(ID)), store.contains(ID), store.list()) == (b"hello", True, [ID])
    put(store, OTHER, b"x")
    assert store.list() == [ID, OTHER]
    assert store.directory.stat().st_mode & 0o777 == 0o700
    assert sorted(entry.name for entry in store.directory.iterdir()) == [ID.hex(), OTHER.hex()]


def test_a_reader_cannot_write(store: SharedMemoryStore) -> None:
    put(store, ID, bytes(80))
    view = store.open(ID)
    array = np.frombuffer(view, np.float64)
    assert view.readonly
    assert not array.flags.writeable
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_readers_share_the_pages_and_survive_deletion(store: SharedMemoryStore) -> None:
    data = random.Random(1).randbytes(3 << 20)
    put(store, ID, data)
    array = np.frombuffer(store.open(ID), np.uint8)
    assert store.delete(ID)
    assert not store.delete(ID)
    assert not store.contains(ID)
    assert array.tobytes() == data
    put(store, ID, b"made again")  # lineage replays an id; the old view is of the old file
    assert array[:10].tobytes() == data[:10]
    store.destroy()
    assert array.tobytes() == data


def test_zero_bytes(store: SharedMemoryStore) -> None:
    released: list[bytes] = []
    assert len(store.create(ID, 0)) == 0
    store.seal(ID)
    view = store.open(ID, released.append)
    assert (len(view), bytes(view), view.readonly, released) == (0, b"", True, [])
    del view
    assert released == [ID]


def test_the_first_to_seal_wins_and_objects_never_change(store: SharedMemoryStore) -> None:
    ours = store.create(ID, 3)
    with pytest.raises(FileExistsError):
        store.create(ID, 3)
    other = SharedMemoryStore(store.directory)
    ours[:] = b"one"
    (store.directory / f".{ID.hex()}.{os.getpid()}").rename(store.directory / f".{ID.hex()}.1")
    other.create(ID, 3)[:] = b"two"  # as if by another process
    other.seal(ID)
    (store.directory / f".{ID.hex()}.1").rename(store.directory / f".{ID.hex()}.{os.getpid()}")
    with pytest.raises(FileExistsError):
        store.seal(ID)
    assert bytes(store.open(ID)) == b"two"
    with pytest.raises(FileExistsError, match="sealed"):
        store.create(ID, 3)
    assert [entry.name for entry in store.directory.iterdir()] == [ID.hex()]


def test_abort_leaves_nothing(store: SharedMemoryStore) -> None:
    store.create(ID, 1000)
    store.abort(ID)
    assert list(store.directory.iterdir()) == []
    for call in (store.abort, store.seal):
        with pytest.raises(KeyError):
            call(ID)
    put(store, ID, b"again")
    assert bytes(store.open(ID)) == b"again"


def test_a_full_file_system_is_an_error_and_not_a_signal(store: SharedMemoryStore) -> None:
    status = os.statvfs(store.directory)
    with pytest.raises(OSError, match="No space") as caught:
        store.create(ID, status.f_bavail * status.f_frsize + (1 << 30))
    assert caught.value.errno == errno.ENOSPC
    assert list(store.directory.iterdir()) == []


def test_bad_input(store: SharedMemoryStore) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        store.create(ID, -1)
    with pytest.raises(ValueError, match="empty"):
        store.open(b"")


# -- release -----------------------------------------------------------------------------------------------------


def test_release_comes_once_when_the_last_view_is_gone(store: SharedMemoryStore) -> None:
    put(store, ID, np.arange(100.0).tobytes())
    released: list[bytes] = []
    view = store.open(ID, released.append)
    array = np.frombuffer(view, np.float64)
    part = array[10:20].reshape(2, 5).T
    piece = view[3:7]
    del view, array
    gc.collect()
    assert released == []
    assert part[0, 0] == 10.0
    del part
    assert released == []
    del piece
    assert released == [ID]
    gc.collect()
    assert released == [ID]


def test_each_open_is_released_by_itself(store: SharedMemoryStore) -> None:
    put(store, ID, b"abc")
    released: list[str] = []
    first = store.open(ID, lambda _: released.append("first"))
    second = store.open(ID, lambda _: released.append("second"))
    del first
    assert released == ["first"]
    assert bytes(second) == b"abc"
    del second
    assert released == ["first", "second"]


def test_out_of_band_pickles_keep_the_mapping(store: SharedMemoryStore) -> None:
    value: dict[str, Any] = {"a": np.arange(1000), "b": [np.ones((10, 10))] * 2}
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    put(store, ID, b"".join(raw))
    released: list[bytes] = []
    view = store.open(ID, released.append)
    parts, start = [], 0
    for buffer in raw:
        parts.append(view[start : start + len(buffer)])
        start += len(buffer)
    loaded = pickle.loads(stream, buffers=parts)
    del view, parts
    gc.collect()
    assert released == []
    assert np.array_equal(loaded["a"], value["a"])
    assert loaded["b"][0] is loaded["b"][1]
    assert not loaded["a"].flags.writeable
    kept = loaded["b"][0][2]
    del loaded
    assert released == []
    assert kept.sum() == 10.0
    del kept
    assert released == [ID]


def test_a_cycle_is_released_by_the_collector(store: SharedMemoryStore) -> None:
    put(store, ID, bytes(8))
    released: list[bytes] = []
    cycle: list[object] = [np.frombuffer(store.open(ID, released.append), np.int64)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert released == [ID]


def test_live_views_cost_no_descriptor_and_released_ones_no_memory(store: SharedMemoryStore) -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(store.directory))

    put(store, ID, bytes(10_000))
    before = len(list(Path("/proc/self/fd").iterdir()))
    views = [store.open(ID) for _ in range(2000)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert 0 < mappings() <= 2000
    del views
    assert mappings() == 0


# -- processes ---------------------------------------------------------------------------------------------------


def test_another_process_reads_what_was_sealed_and_writes_what_we_read(store: SharedMemoryStore) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from dualray.real.object_store import SharedMemoryStore
store = SharedMemoryStore(Path(sys.argv[1]))
total = np.frombuffer(store.open(bytes.fromhex(sys.argv[2])), np.int64).sum()
np.frombuffer(store.create(bytes.fromhex(sys.argv[3]), 8), np.int64)[0] = total
store.seal(bytes.fromhex(sys.argv[3]))
store.create(b"unfinished", 8)
"""
    put(store, ID, np.arange(1000).tobytes())
    command = [sys.executable, "-c", program, str(store.directory), ID.hex(), OTHER.hex()]
    subprocess.run(command, check=True)
    assert np.frombuffer(store.open(OTHER), np.int64).tolist() == [499500]
    assert store.list() == [ID, OTHER]
    put(store, b"unfinished", b"what a dead process began blocks nobody")
    assert len(list(store.directory.iterdir())) == 4


def test_the_interpreter_ends_with_live_views(store: SharedMemoryStore) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from dualray.real.object_store import SharedMemoryStore
store = SharedMemoryStore(Path(sys.argv[1]))
kept = np.frombuffer(store.open(bytes.fromhex(sys.argv[2]), lambda _: print("released")), np.uint8)
"""
    put(store, ID, b"abc")
    command = [sys.executable, "-W", "error", "-c", program, str(store.directory), ID.hex()]
    done = subprocess.run(command, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
