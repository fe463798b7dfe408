"""A module as users write them, with locks and a pool that are made when it is imported."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

LOCK = threading.Lock()
AGAIN = threading.RLock()
POOL = ThreadPoolExecutor(2, thread_name_prefix="of-module")


LOCAL = threading.local()
LOCAL.made = "at import"


class Guarded:
    lock = threading.Lock()


class Cache:
    """Has its lock in an instance."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def hold(self) -> float:
        began = time.time()
        with self.lock:
            time.sleep(1)
        return time.time() - began


CACHE = Cache()


class Proxy:
    """Stands for something that is not there yet."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError(f"working outside of context: {name}")


PROXY = Proxy()
STRIPES = {"one": [threading.Lock()]}
READY = threading.Condition(LOCK)
_POOLS: list[ThreadPoolExecutor] = []


def hold_default(lock: threading.Lock = LOCK) -> None:  # type: ignore[valid-type,unused-ignore]
    """The lock that `hold` takes, under another name."""
    with lock:
        time.sleep(1)


def locals_of_threads() -> tuple[list[bool], str, int]:
    """Which threads have what the module has put there; the main one's; and how often it has come here."""
    has: list[bool] = []

    def look() -> None:
        has.append(hasattr(LOCAL, "made"))
        LOCAL.made = "in a thread"
        time.sleep(1)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    LOCAL.count = getattr(LOCAL, "count", 0) + 1
    return has, LOCAL.made, LOCAL.count


def hold_cache() -> None:
    CACHE.hold()


def hold_stripe() -> None:
    with STRIPES["one"][0]:
        time.sleep(1)


def notified() -> bool:
    """Whether a condition over a module's lock is notified."""

    def notify() -> None:
        time.sleep(1)
        with LOCK:
            READY.notify()

    thread = threading.Thread(target=notify)
    thread.start()
    with LOCK:
        return READY.wait(5)


def pool_made_late() -> ThreadPoolExecutor:
    if not _POOLS:
        _POOLS.append(ThreadPoolExecutor(2))
    return _POOLS[0]


def hold(seconds: float = 1.0) -> float:
    """How long it takes to hold all three for so long."""
    began = time.time()
    with LOCK, AGAIN, AGAIN, Guarded.lock:
        time.sleep(seconds)
    return time.time() - began


def hold_on_threads(count: int) -> float:
    began = time.time()
    threads = [threading.Thread(target=hold) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.time() - began


def pooled(count: int) -> tuple[float, set[str]]:
    began, names = time.time(), set()

    def pause() -> None:
        time.sleep(1)
        names.add(threading.current_thread().name)

    for future in [POOL.submit(pause) for _ in range(count)]:
        future.result()
    return time.time() - began, names
