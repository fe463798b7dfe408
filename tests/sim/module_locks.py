"""A module as users write them, with locks and a pool that are made when it is imported."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

LOCK = threading.Lock()
AGAIN = threading.RLock()
POOL = ThreadPoolExecutor(2, thread_name_prefix="of-module")


class Guarded:
    lock = threading.Lock()


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
