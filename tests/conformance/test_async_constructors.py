"""Where the constructor of an actor with coroutines runs: on the event loop and the thread of its methods."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import threading

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError
from tests.conformance.support import eventually, get, stderr_so_far

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def square(x):
    return x * x


def test_a_constructor_may_be_a_coroutine():
    @ray.remote
    class Late:
        async def __init__(self, number):
            await asyncio.sleep(0.01)
            if number < 0:
                raise ValueError(f"{number} is negative")
            self.number = number

        def get(self):
            return self.number

    assert get(Late.remote(3).get.remote()) == 3
    with pytest.raises(ActorDiedError, match="-1 is negative"):
        get(Late.remote(-1).get.remote())


def test_a_constructor_runs_where_the_methods_run():
    @ray.remote
    class Database:
        def __init__(self):
            self.loop = asyncio.get_running_loop()
            self.kept = threading.local()
            self.kept.value = "kept"
            self.connection = sqlite3.connect(":memory:")  # other threads may not use it
            self.connection.execute("CREATE TABLE numbers (number)")
            self.ticks = 0
            self.ticking = self.loop.create_task(self.tick())

        async def tick(self):
            while True:
                self.ticks += 1
                await asyncio.sleep(0.01)

        async def add(self, number):
            self.connection.execute("INSERT INTO numbers VALUES (?)", (number,))
            rows = self.connection.execute("SELECT number FROM numbers").fetchall()
            return self.loop is asyncio.get_running_loop(), self.kept.value, rows

        async def ticked(self):
            await asyncio.sleep(0.1)
            return self.ticks

    actor = Database.remote()
    assert get(actor.add.remote(5)) == (True, "kept", [(5,)])
    assert get(actor.ticked.remote()) > 1


def test_methods_do_not_see_the_variables_of_the_constructors_context():
    @ray.remote
    class Contextual:
        def __init__(self):
            self.variable = contextvars.ContextVar("variable", default="default")
            self.variable.set("in the constructor")

        async def seen(self):
            before = self.variable.get()
            self.variable.set("in a method")
            return before

    actor = Contextual.remote()
    assert get([actor.seen.remote() for _ in range(2)]) == ["default"] * 2


def test_a_constructor_that_gets_a_value_blocks_nobody(capfd):
    @ray.remote
    class Getting:
        def __init__(self):
            self.value = ray.get(square.remote(3))

        async def blocked(self):
            return self.value + ray.get(square.remote(4))

    assert get(Getting.remote().blocked.remote()) == 25
    eventually(lambda: "on the event loop of its actor" in stderr_so_far(), "it is told")
    told = capfd.readouterr().err
    assert told.count("calls dualray.get()") == told.count("Getting.blocked calls dualray.get()") == 1
