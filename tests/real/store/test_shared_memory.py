"""The arena of a node, its places and its memory: several stores and processes over real files in /dev/shm."""

from __future__ import annotations

import gc
import os
import pickle
import queue
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dualray.real.store.arena import PAGE, Arena
from dualray.real.store.node_store import MIB, NodeStore
from dualray.real.store.object_store import ARENA_FILE, SharedMemoryStore

ID = bytes(range(20))
OTHER = b"\xff" * 20
WITHIN_S = 30.0


class Node:
    """A node manager's store, and a loop for what it reports."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        options = {
            "capacity": 64 * MIB,
            "size_min": 100,
            "objects_max": 10_000,
            "warm_bytes": 16 * MIB,
            "idle_s": 60.0,
            "call_soon": self.calls.put,
        }
        self.store = NodeStore(directory, **options | changes)  # type: ignore[arg-type]

    def reserve(self, object_id: bytes, size: int) -> str | None:
        """Reserve and wait for the outcome."""
        outcomes: list[str | None] = []
        self.store.reserve(object_id, size, outcomes.append)
        while not outcomes:
            self.calls.get(timeout=WITHIN_S)()
        return outcomes[0]

    def eventually(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline_s, what
            time.sleep(0.01)


@pytest.fixture
def directory() -> Iterator[Path]:
    path = Path(f"/dev/shm/dualray-{os.getpid()}-test{random.Random().randrange(1 << 30):x}")
    yield path
    assert not path.exists()


@pytest.fixture
def node(directory: Path) -> Iterator[Node]:
    node = Node(directory)
    yield node
    node.store.destroy()
    node.store.destroy()


@pytest.fixture
def store(node: Node, directory: Path) -> Iterator[SharedMemoryStore]:
    store = SharedMemoryStore(directory)
    yield store
    store.close()
    store.close()


def put(node: Node, store: SharedMemoryStore, object_id: bytes, data: bytes) -> None:
    assert node.reserve(object_id, len(data)) is None
    store.create(object_id, len(data))[:] = data
    store.seal(object_id)


# -- objects -----------------------------------------------------------------------------------------------------


def test_an_object_is_written_where_room_was_reserved_and_read_in_place(
    node: Node, store: SharedMemoryStore, directory: Path
) -> None:
    data = random.Random(1).randbytes(3 * MIB + 5)
    put(node, store, ID, data)
    other = SharedMemoryStore(directory)
    view = other.open(ID)
    assert (bytes(view), view.readonly, len(view)) == (data, True, len(data))
    assert np.frombuffer(view, np.uint8).ctypes.data % 64 == 0
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / ARENA_FILE).stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in directory.iterdir()] == [ARENA_FILE]
    other.close()
    assert bytes(view) == data, "a view outlives its store"


def test_a_process_without_room_for_numpy_reads_all_the_same(
    node: Node, store: SharedMemoryStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(node, store, ID, b"some data")
    monkeypatch.setitem(sys.modules, "numpy", None)  # what `import numpy` raises then is an ImportError, too
    other = SharedMemoryStore(directory)
    released: list[bytes] = []
    view = other.open(ID, released.append)
    assert (bytes(view), view.readonly) == (b"some data", True)
    part = view[5:]
    del view
    assert (bytes(part), released) == (b"data", [])
    del part
    assert released == [ID]
    other.close()


def test_a_process_that_was_promised_nothing_gets_nothing(node: Node, store: SharedMemoryStore) -> None:
    with pytest.raises(KeyError, match="no space reserved"):
        store.create(ID, 5)
    with pytest.raises(KeyError, match="is not in"):
        store.open(ID)
    assert node.reserve(ID, 5) is None
    with pytest.raises(ValueError, match="has 6 bytes, but the object store reserved 5 bytes"):
        store.create(ID, 6)
    with pytest.raises(KeyError):
        store.seal(ID)
    store.create(ID, 5)
    store.seal(ID)
    node.store.delete(ID)
    node.store.delete(ID)
    with pytest.raises(KeyError):
        store.open(ID)
    assert not node.store.contains(ID)


def test_a_reader_cannot_write(node: Node, store: SharedMemoryStore) -> None:
    put(node, store, ID, bytes(80))
    view = store.open(ID)
    array = np.frombuffer(view, np.float64)
    assert not array.flags.writeable
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_memory_under_a_read_only_view_is_mapped_read_only(directory: Path) -> None:
    """Code in C that ignores the flag gets a signal, and others' objects stay as they are."""
    program = """
import ctypes, sys
from pathlib import Path
import numpy as np
from tests.real.store.test_shared_memory import ID, Node, put
from dualray.real.store.object_store import SharedMemoryStore
node = Node(Path(sys.argv[1]))
store = SharedMemoryStore(Path(sys.argv[1]))
put(node, store, ID, bytes(100))
address = np.frombuffer(store.open(ID), np.uint8).ctypes.data
node.store.destroy()
ctypes.memset(address, 1, 1)
"""
    done = subprocess.run([sys.executable, "-c", program, str(directory)], capture_output=True, timeout=60)
    assert done.returncode == -11, done.stderr.decode()


def test_zero_bytes(node: Node, store: SharedMemoryStore) -> None:
    released: list[bytes] = []
    put(node, store, ID, b"")
    put(node, store, OTHER, b"x")
    view = store.open(ID, released.append)
    assert (len(view), bytes(view), view.readonly, released) == (0, b"", True, [])
    assert bytes(store.open(OTHER)) == b"x"
    del view
    assert released == [ID]


def test_objects_cost_no_mapping_no_descriptor_and_no_file(
    node: Node, store: SharedMemoryStore, directory: Path
) -> None:
    put(node, store, ID, bytes(10_000))
    kept = [store.open(ID)]

    def holdings() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text().count(str(directory))
        return maps, len(list(Path("/proc/self/fd").iterdir()))

    before = holdings()
    for number in range(500):
        object_id = number.to_bytes(20, "big")
        put(node, store, object_id, bytes(20_000))
        kept += [store.open(object_id), store.open(ID)]
    assert holdings() == before


def test_memory_that_was_freed_is_used_again(node: Node, store: SharedMemoryStore) -> None:
    put(node, store, ID, b"a" * MIB)
    address = np.frombuffer(store.open(ID), np.uint8).ctypes.data
    node.store.delete(ID)
    put(node, store, OTHER, b"b" * MIB)
    view = store.open(OTHER)
    assert np.frombuffer(view, np.uint8).ctypes.data == address
    assert bytes(view) == b"b" * MIB


def test_an_object_deleted_while_it_waits_for_memory_reports_nothing(node: Node, store: SharedMemoryStore) -> None:
    outcomes: list[str | None] = []
    for _ in range(20):
        node.store.reserve(ID, 10 * MIB, lambda error: outcomes.append("too late"))
        node.store.delete(ID)
    put(node, store, ID, b"again")
    while not node.calls.empty():
        node.calls.get()()
    assert (outcomes, bytes(store.open(ID))) == ([], b"again")
    node.store.delete(ID)
    assert node.reserve(OTHER, 64 * MIB) is None, "all room is there again"


def test_an_object_from_elsewhere_fills_the_place_that_waits_for_it(node: Node, store: SharedMemoryStore) -> None:
    assert not node.store.write(ID, b"nobody wants it")
    assert node.reserve(ID, 3) is None
    assert not node.store.write(ID, b"of another size")
    assert node.store.write(ID, b"abc")
    assert bytes(store.open(ID)) == b"abc"


def test_a_full_index_is_an_error_in_words(directory: Path) -> None:
    node = Node(directory, objects_max=1)
    errors = [node.reserve(number.to_bytes(20, "big"), 100) for number in range(65)]
    assert errors[:64] == [None] * 64
    assert "index has no free slot among 64" in str(errors[64])
    node.store.delete(bytes(20))
    assert node.reserve(ID, 100) is None
    node.store.destroy()


# -- release -----------------------------------------------------------------------------------------------------


def test_release_comes_once_when_the_last_view_is_gone(node: Node, store: SharedMemoryStore) -> None:
    put(node, store, ID, np.arange(100.0).tobytes())
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


def test_each_open_is_released_by_itself(node: Node, store: SharedMemoryStore) -> None:
    put(node, store, ID, b"abc")
    released: list[str] = []
    first = store.open(ID, lambda _: released.append("first"))
    second = store.open(ID, lambda _: released.append("second"))
    del first
    assert released == ["first"]
    assert bytes(second) == b"abc"
    del second
    assert released == ["first", "second"]


def test_out_of_band_pickles_keep_the_view(node: Node, store: SharedMemoryStore) -> None:
    value: dict[str, Any] = {"a": np.arange(1000), "b": [np.ones((10, 10))] * 2}
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    put(node, store, ID, b"".join(raw))
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


def test_a_cycle_is_released_by_the_collector(node: Node, store: SharedMemoryStore) -> None:
    put(node, store, ID, bytes(8))
    released: list[bytes] = []
    cycle: list[object] = [np.frombuffer(store.open(ID, released.append), np.int64)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert released == [ID]


# -- memory ------------------------------------------------------------------------------------------------------


def test_a_store_that_nobody_uses_takes_no_memory_but_its_index(node: Node, directory: Path) -> None:
    arena = Arena.attach(directory / ARENA_FILE)
    assert arena.resident_bytes() == arena.layout.data_offset
    assert node.store.taken_bytes() == 0
    arena.close()


def test_free_memory_is_kept_ready_ahead_of_what_is_used(node: Node, store: SharedMemoryStore) -> None:
    put(node, store, ID, bytes(20 * MIB))
    node.eventually(lambda: node.store.taken_bytes() >= 28 * MIB, "16 MiB are made ready behind the first 20")
    address = np.frombuffer(store.open(ID), np.uint8).ctypes.data
    put(node, store, OTHER, bytes(10 * MIB))
    assert np.frombuffer(store.open(OTHER), np.uint8).ctypes.data == address + 20 * MIB
    assert node.store.taken_bytes() <= 20 * MIB + 10 * MIB + 16 * MIB + PAGE


def test_idle_memory_is_given_back_but_for_what_is_kept_ready(directory: Path) -> None:
    node = Node(directory, idle_s=0.05)
    store = SharedMemoryStore(directory)
    for number in range(6):
        put(node, store, bytes([number]) * 20, bytes(10 * MIB))
    kept = store.open(bytes([2]) * 20)
    arena = Arena.attach(directory / ARENA_FILE)
    full = arena.resident_bytes()
    assert full >= 60 * MIB
    for number in (0, 1, 3, 4, 5):
        node.store.delete(bytes([number]) * 20)
    node.eventually(lambda: arena.resident_bytes() <= full - 25 * MIB, "free memory goes back to the system")
    node.eventually(lambda: node.store.taken_bytes() <= 10 * MIB + 16 * MIB + 8 * MIB, "what is kept is bounded")
    assert bytes(kept) == bytes(10 * MIB)
    for number in (0, 1, 3, 4, 5):  # in memory that was given back, and mapped again
        put(node, store, bytes([number]) * 20, bytes([number]) * 10 * MIB)
    for number in (0, 1, 3, 4, 5):
        assert bytes(store.open(bytes([number]) * 20)) == bytes([number]) * 10 * MIB
    del kept
    arena.close()
    store.close()
    node.store.destroy()


def test_idle_memory_is_given_back_while_others_come_and_go(directory: Path) -> None:
    node = Node(directory, idle_s=0.1)
    store = SharedMemoryStore(directory)
    for number in range(6):
        put(node, store, bytes([number]) * 20, bytes(10 * MIB))
    for number in range(6):
        node.store.delete(bytes([number]) * 20)

    def is_given_back() -> bool:
        put(node, store, ID, bytes(MIB))
        node.store.delete(ID)
        return node.store.taken_bytes() <= 16 * MIB + 8 * MIB

    node.eventually(is_given_back, "memory that is not used again goes, though other memory is used all the time")
    store.close()
    node.store.destroy()


def test_memory_never_exceeds_the_capacity_whatever_the_sizes(directory: Path) -> None:
    node = Node(directory, warm_bytes=64 * MIB)
    store = SharedMemoryStore(directory)
    chance = random.Random(3)
    live: dict[bytes, int] = {}
    for number in range(150):
        size = chance.choice((70_000, 3 * MIB, 11 * MIB, 25 * MIB))
        while sum(live.values()) + size > 64 * MIB:
            gone = chance.choice(list(live))
            assert bytes(store.open(gone)[:5]) == gone[:5]
            node.store.delete(gone)
            del live[gone]
        object_id = number.to_bytes(4, "big") * 5
        assert node.reserve(object_id, size) is None, "what the accounting admits has a place"
        store.create(object_id, size)[:5] = object_id[:5]
        store.seal(object_id)
        live[object_id] = size
        assert node.store.taken_bytes() <= 64 * MIB + 2 * PAGE * len(live) + 8 * MIB
    node.store.destroy()
    store.close()


def test_a_process_that_was_last_keeps_only_the_memory_of_its_views(node: Node, directory: Path) -> None:
    store = SharedMemoryStore(directory)
    for number in range(5):
        put(node, store, bytes([number]) * 20, bytes([number]) * (8 * MIB))
    kept = np.frombuffer(store.open(bytes([3]) * 20), np.uint8)
    arena = Arena.attach(directory / ARENA_FILE)
    node.store.destroy()
    store.close(is_last=True)
    assert 8 * MIB <= arena.resident_bytes() <= 8 * MIB + 3 * PAGE
    assert (kept == 3).all()
    with pytest.raises(ValueError, match="closed"):
        store.open(ID)
    arena.close()


# -- a full file system --------------------------------------------------------------------------------------------

_ON_A_SMALL_TMPFS = """
import sys, os
from pathlib import Path
from tests.real.store.test_shared_memory import ID, OTHER, MIB, Node, put
from dualray.real.store.object_store import SharedMemoryStore
place = Path(sys.argv[1])
"""


def on_a_small_tmpfs(program: str, place: Path, size: str = "32m") -> str:
    """Run a program that has a file system of its own at `place`, and nothing else of the machine's to fill."""
    command = f'mount -t tmpfs -o size={size} tmpfs "$0" && exec "$@"'
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", command, str(place)]
    if subprocess.run([*words, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("this system lets nobody mount a file system of his own")
    done = subprocess.run([*words, sys.executable, "-c", program, str(place)], capture_output=True, timeout=100)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_a_full_file_system_is_an_error_in_words_and_not_a_signal(tmp_path: Path) -> None:
    program = (
        _ON_A_SMALL_TMPFS
        + """
node = Node(place / "session", warm_bytes=0)
store = SharedMemoryStore(place / "session")
put(node, store, ID, b"a" * (10 * MIB))
(place / "of somebody else").write_bytes(bytes(8 * MIB))
error = node.reserve(OTHER, 25 * MIB)
assert "is full" in error and "of its 33,554,432 bytes are free" in error and "67,108,864" in error, error
assert node.store.taken_bytes() <= 26 * MIB
assert not node.store.contains(OTHER)
(place / "of somebody else").unlink()
put(node, store, OTHER, b"b" * (20 * MIB))
assert bytes(store.open(ID)) == b"a" * (10 * MIB) and bytes(store.open(OTHER)) == b"b" * (20 * MIB)
node.store.delete(OTHER)
put(node, store, OTHER, b"c" * (15 * MIB))  # in memory that it had already
assert bytes(store.open(OTHER)) == b"c" * (15 * MIB)
node.store.destroy()
"""
    )
    on_a_small_tmpfs(program, tmp_path)


def test_no_room_for_the_index_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    program = (
        _ON_A_SMALL_TMPFS
        + """
from dualray.exceptions import DualrayError
try:
    Node(place / "session", objects_max=10_000_000, size_min=1)
except DualrayError as error:
    assert "has 4,194,304 bytes free, but the index" in str(error), error
else:
    raise AssertionError("there was room")
assert list((place / "session").iterdir()) == []
"""
    )
    on_a_small_tmpfs(program, tmp_path, "4m")


# -- the index -----------------------------------------------------------------------------------------------------


def test_an_id_that_fits_no_slot_is_refused(node: Node) -> None:
    for object_id in (b"", bytes(41)):
        with pytest.raises(ValueError, match="must have 1 to 40 bytes"):
            node.store.reserve(object_id, 5, lambda error: None)


# -- processes ---------------------------------------------------------------------------------------------------


def test_another_process_reads_what_we_wrote_and_writes_what_we_read(
    node: Node, store: SharedMemoryStore, directory: Path
) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from dualray.real.store.object_store import SharedMemoryStore
store = SharedMemoryStore(Path(sys.argv[1]))
total = np.frombuffer(store.open(bytes.fromhex(sys.argv[2])), np.int64).sum()
np.frombuffer(store.create(bytes.fromhex(sys.argv[3]), 8), np.int64)[0] = total
store.seal(bytes.fromhex(sys.argv[3]))
"""
    put(node, store, ID, np.arange(1000).tobytes())
    assert node.reserve(OTHER, 8) is None
    command = [sys.executable, "-c", program, str(directory), ID.hex(), OTHER.hex()]
    subprocess.run(command, check=True, timeout=60)
    assert np.frombuffer(store.open(OTHER), np.int64).tolist() == [499500]


def test_readers_find_their_objects_while_others_come_and_go(
    node: Node, store: SharedMemoryStore, directory: Path
) -> None:
    program = """
import sys
from pathlib import Path
from dualray.real.store.object_store import SharedMemoryStore
store = SharedMemoryStore(Path(sys.argv[1]))
print("ready", flush=True)
for turn in range(20_000):
    for number in range(3):
        assert store.open(bytes([number]) * 20)[0] == number
"""
    for number in range(3):
        put(node, store, bytes([number]) * 20, bytes([number]) * 500)
    reader = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE)
    with reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == b"ready\n"
        chance = random.Random(5)
        while reader.poll() is None:
            for object_id in [chance.randbytes(20) for _ in range(100)]:
                put(node, store, object_id, b"\xee" * chance.randrange(100, 1000))
                node.store.delete(object_id)
    assert reader.returncode == 0


def test_the_interpreter_ends_with_live_views(node: Node, store: SharedMemoryStore, directory: Path) -> None:
    program = """
import sys
from pathlib import Path
import numpy as np
from dualray.real.store.object_store import SharedMemoryStore
store = SharedMemoryStore(Path(sys.argv[1]))
kept = np.frombuffer(store.open(bytes.fromhex(sys.argv[2]), lambda _: print("released")), np.uint8)
"""
    put(node, store, ID, b"abc")
    command = [sys.executable, "-W", "error", "-c", program, str(directory), ID.hex()]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_driver_names_both_sizes_when_shared_memory_is_too_small(tmp_path: Path) -> None:
    program = """
import dualray as ray
try:
    ray.init(object_store_memory="1GiB")
except ValueError as error:
    assert "object_store_memory=1,073,741,824 bytes" in str(error), error
    assert "/dev/shm has only 33,554,432 bytes free" in str(error), error
else:
    raise AssertionError("it started")
"""
    on_a_small_tmpfs(program, Path("/dev/shm"))


@pytest.mark.slow
def test_what_is_fetched_early_asks_for_memory_now_and_then_and_not_all_the_time(tmp_path: Path) -> None:
    program = """
import os, time
from pathlib import Path
import numpy as np
import psutil
import dualray as ray
from dualray.cluster_utils import Cluster
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
MIB = 1 << 20
arguments = {"num_cpus": 1, "object_store_memory": 20 * MIB}
if __name__ == "__main__":
    with Cluster(initialize_head=True, connect=True, head_node_args=arguments) as cluster:
        node = cluster.add_node(num_cpus=2, object_store_memory=20 * MIB)
        there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)

        @ray.remote(scheduling_strategy=there)
        def hold(begun, end):
            Path(begun).touch()
            while not Path(end).exists():
                time.sleep(0.05)

        @ray.remote(scheduling_strategy=there)
        def total(array):
            return int(array.sum())

        assert ray.get(total.remote(np.ones(1))) == 1
        holding = hold.remote("/dev/shm/begun", "/dev/shm/end")
        while not Path("/dev/shm/begun").exists():
            time.sleep(0.01)
        ref = ray.put(np.ones(10 * MIB, np.uint8))
        status = os.statvfs("/dev/shm")
        others = Path("/dev/shm/of somebody else")
        others.write_bytes(bytes(status.f_bavail * status.f_frsize - 2 * MIB))
        [manager] = [process for process in node.processes() if "dualray.real.processes.node" in process.cmdline()]
        used_s = lambda: sum(psutil.Process(manager.pid).cpu_times()[:2])
        late = total.remote(ref)  # the other task may make room when it ends
        before_s = used_s()
        assert ray.wait([late], timeout=4) == ([], [late])
        assert used_s() - before_s < 0.5, f"{used_s() - before_s:g} s of 4"
        others.unlink()
        assert ray.get(late, timeout=30) == 10 * MIB
        Path("/dev/shm/end").touch()
        ray.get(holding, timeout=30)
    for name in ("begun", "end"):
        Path("/dev/shm", name).unlink()
    assert list(Path("/dev/shm").iterdir()) == []
    print("went on")
"""
    assert on_a_small_tmpfs(program, Path("/dev/shm"), "48m").endswith("went on\n")


def test_a_cluster_on_little_shared_memory_refuses_what_does_not_fit_and_goes_on(tmp_path: Path) -> None:
    program = """
from pathlib import Path
import numpy as np
import dualray as ray
from dualray.exceptions import ObjectStoreFullError
MIB = 1 << 20
if __name__ == "__main__":
    ray.init(num_cpus=1, limits={"store_wait_ns": 100_000_000, "store_warm_bytes": 0})
    first = ray.put(np.full(8 * MIB, 1, dtype=np.uint8))
    others = Path("/dev/shm/of somebody else")
    others.write_bytes(bytes(16 * MIB))
    try:
        ray.put(np.full(12 * MIB, 2, dtype=np.uint8))
    except ObjectStoreFullError as error:
        assert "found no memory: /dev/shm is full" in str(error) and "33,554,432 bytes" in str(error), error
    else:
        raise AssertionError("there was room")
    others.unlink()
    second = ray.put(np.full(12 * MIB, 2, dtype=np.uint8))
    assert (ray.get(first) == 1).all() and (ray.get(second) == 2).all()
    ray.shutdown()
    assert list(Path("/dev/shm").iterdir()) == []
    print("went on")
"""
    assert on_a_small_tmpfs(program, Path("/dev/shm")).endswith("went on\n")
