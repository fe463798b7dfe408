"""A module as users write them, with state in its globals and classes."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import os
import sys
import threading
import time
from random import random
from time import sleep
from typing import Any

import dualray
from tests.sim.usercode import module_other
from tests.sim.usercode.module_other import LIMIT, doubled

_imports: list[str] = builtins.__dict__.setdefault("dualray_test_imports", [])
_imports.append(__name__)

COUNT = 0
CACHE: dict[str, int] = {}
CONFIG = 1
HOME = os.environ.get("DUALRAY_TEST_HOME", "nowhere")
LOCK = threading.Lock()
LOCAL = threading.local()
DRAWN = random()


class MyError(Exception):
    """As users have them."""


class Total:
    seen = 0
    names: list[str] = []  # noqa: RUF012 - what this is about

    def __init__(self, n: int) -> None:
        self.n = n

    def bump(self) -> int:
        self.names.append("bump")
        return len(self.names)


@dataclasses.dataclass
class Point:
    x: int = 0
    y: int = 0


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Actor:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.calls = 0

    def call(self) -> tuple[int, int, int]:
        global COUNT  # noqa: PLW0603 - what this is about
        COUNT += 1
        self.calls += 1
        return self.made, COUNT, self.calls

    def point(self, x: int) -> Point:
        return Point(x, COUNT)

    def fail(self) -> None:
        raise MyError("of an actor")

    async def wait(self, seconds: float) -> int:
        import asyncio

        global COUNT  # noqa: PLW0603 - what this is about
        await asyncio.sleep(seconds)
        COUNT += 1
        return COUNT


def count() -> int:
    global COUNT  # noqa: PLW0603 - what this is about
    COUNT += 1
    return COUNT


def cache(key: str) -> int:
    CACHE[key] = CACHE.get(key, 0) + 1
    return CACHE[key]


def cached() -> int:
    if isinstance(CACHE, dict):
        CACHE[str(len(CACHE))] = 1
    return len(CACHE)


def config() -> int:
    return CONFIG


def count_class() -> int:
    Total.seen += 1
    return Total.seen


def bump(total: Total) -> int:
    return total.bump()


def applied(function: Any, *args: Any) -> Any:
    return function(*args)


def count_other() -> int:
    return module_other.count()


def count_imported() -> int:
    from tests.sim.usercode.module_other import count as counts

    return counts()


def limit() -> int:
    return LIMIT


def pure(x: int) -> int:
    return doubled(x) + 1


def point(x: int) -> Point:
    CACHE["point"] = x
    return Point(x, y=len(CACHE))


def colour() -> Colour:
    CACHE["colour"] = 1
    return Colour.BLUE


def fail() -> None:
    CACHE["fail"] = 1
    raise MyError("of a task")


def items(n: int) -> Any:
    global COUNT  # noqa: PLW0603 - what this is about
    for _ in range(n):
        COUNT += 1
        yield Point(COUNT)


@dualray.remote
def count_remotely() -> int:
    global COUNT  # noqa: PLW0603 - what this is about
    COUNT += 1
    return COUNT


@dualray.remote
class Counted:
    made = 0
    log: list[int] = []  # noqa: RUF012 - what this is about

    def __init__(self) -> None:
        Counted_made.append(1)
        type(self).made += 1
        self.log.append(1)

    def call(self) -> tuple[int, int, int]:
        return self.made, len(self.log), len(Counted_made)


Counted_made: list[int] = []


def nested(by: int) -> tuple[int, int]:
    """What this module's functions give as tasks of one of its tasks."""
    global COUNT  # noqa: PLW0603 - what this is about
    COUNT += by
    remote = dualray.remote(count)
    return dualray.get(remote.remote()), dualray.get(count_remotely.remote())


def count_on_threads(threads: int) -> int:
    def step() -> None:
        global COUNT  # noqa: PLW0603 - what this is about
        with LOCK:
            seen = COUNT
            sleep(0.01)
            COUNT = seen + 1

    started = [threading.Thread(target=step) for _ in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return COUNT


def sleeps(seconds: float) -> float:
    """Binds the sleep, and lock, of its own copy."""
    CACHE["sleeps"] = 1
    began = time.time()
    with LOCK:
        sleep(seconds)
    return time.time() - began


def draws() -> float:
    CACHE["draws"] = 1
    return random()


def home() -> tuple[str, str | None]:
    CACHE["home"] = 1
    return HOME, os.environ.get("DUALRAY_TEST_HOME")


def of_thread() -> int:
    LOCAL.n = getattr(LOCAL, "n", 0) + 1
    CACHE["local"] = 1
    return int(LOCAL.n)


def is_own() -> bool:
    """Whether what is imported here is the module of this function."""
    CACHE["own"] = 1
    return sys.modules[__name__].__dict__ is globals()
