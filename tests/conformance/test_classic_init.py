"""The vocabulary of 2017, where it needs a cluster of its own: init, environment variables, tables, PYTHON_MODE."""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest

import dualray
import dualray.classic as ray
from dualray.exceptions import DualrayError, SerializationError
from tests.conformance.classic_support import RUNTIMES, Counter, add, three, value_of
from tests.conformance.support import eventually


@pytest.fixture(params=RUNTIMES)
def init(request, monkeypatch):
    """`ray.init` for one of the three; it ends with the test."""
    if request.param == "inline":
        mode = {"driver_mode": ray.PYTHON_MODE}
    else:
        mode = {}
        monkeypatch.setenv("DUALRAY_MODE", request.param)
    yield lambda **arguments: ray.init(**({"num_cpus": 2, "redirect_output": True} | mode | arguments))
    ray.worker.cleanup()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"driver_mode": ray.WORKER_MODE}, "WORKER_MODE is only for worker processes"),
        ({"driver_mode": 17}, "driver_mode=17"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"num_workers": "2"}, "num_workers='2'"),
        ({"redis_address": "localhost:1", "num_workers": 1}, "joins a cluster"),
        ({"node_ip_address": "here"}, "here"),
    ],
)
def test_what_init_refuses(arguments, words):
    with pytest.raises((ValueError, TypeError), match=words):
        ray.init(**arguments)
    assert not dualray.is_initialized()


# ---- Environment variables ---------------------------------------------------------------------------------------


def test_environment_variables_are_made_in_each_process_and_again_after_use(init):
    ray.env.early = ray.EnvironmentVariable(lambda: ["early"])
    init(num_cpus=1)

    def make():
        return {"uses": 0, "made": 1}

    def again(value):
        return {"uses": 0, "made": value["made"] + 1}

    ray.env.box = ray.EnvironmentVariable(make, again)

    @ray.remote
    def use():
        ray.env.early.append("spoilt")
        ray.env.box["uses"] += 1
        return ray.env.box["uses"], ray.env.box["made"], ray.env.early

    @ray.actor
    class User:
        def use(self):
            return ray.env.box["made"]

    seen = [ray.get(use.remote()) for _ in range(4)]
    assert all((uses, early) == (1, ["early", "spoilt"]) for uses, _, early in seen)
    assert max(made for _, made, _ in seen) > 1  # the second task of some worker
    user = User()
    first, second = ray.get([user.use(), user.use()])
    assert second == first + 1
    ray.env.box["uses"] = 7
    assert ray.env.box == {"uses": 7, "made": 1}  # on the driver it stays

    ray.env.late = ray.EnvironmentVariable(lambda: "late")
    assert ray.get(ray.remote(lambda: ray.env.late).remote()) == "late"
    assert ray.get(use.remote())[0] == 1
    ray.worker.cleanup()
    with pytest.raises(AttributeError, match="has no variable 'box'"):
        _ = ray.env.box


def test_environment_variables_that_cannot_travel(init):
    init()
    lock = threading.Lock()
    ray.env.stuck = ray.EnvironmentVariable(lambda: lock)
    with pytest.raises(SerializationError, match="the environment variable stuck"):
        add.remote(1)


def test_a_result_is_what_it_was_when_the_task_returned(init):
    init(num_cpus=1)

    def clear(value):
        value.clear()
        return value

    ray.env.box = ray.EnvironmentVariable(list, clear)

    @ray.remote
    def fill(number):
        ray.env.box.extend(range(number))
        return ray.env.box

    @ray.remote(num_return_vals=2)
    def both():
        ray.env.box.append(np.zeros(3))
        return ray.env.box, "text"

    @ray.remote
    class Filler:
        def fill(self, item):
            ray.env.box.append(item)
            return ray.env.box

    assert value_of(fill.remote(3)) == [0, 1, 2]
    assert value_of(fill.remote(2)) == [0, 1]
    [array], text = (value_of(each) for each in both.remote())
    assert (array.tolist(), text) == ([0, 0, 0], "text")
    filler = Filler()
    assert [value_of(filler.fill(item)) for item in "ab"] == [["a"], ["b"]]


def test_the_custom_resource(init):
    init(num_cpus=4, num_custom_resource=2)
    assert dualray.cluster_resources()["CustomResource"] == 2

    @ray.remote(num_custom_resource=2)
    def both():
        return "ran"

    @ray.remote(num_custom_resource=1)
    class Holder:
        def held(self):
            return "held"

    assert value_of(both.remote()) == "ran"
    holders = [Holder(), Holder()]
    assert [value_of(holder.held()) for holder in holders] == ["held", "held"]
    if dualray.get_runtime_context().mode != "inline":  # there nothing runs beside anything else
        eventually(lambda: "CustomResource" not in dualray.available_resources(), "the actors hold all of it")
    with pytest.raises(DualrayError, match="CustomResource"):
        value_of(both.options(num_custom_resource=3).remote())
    with pytest.raises(TypeError, match="num_custom_resource='2'"):
        ray.remote(num_custom_resource="2")(abs)


# ---- What the control plane knows --------------------------------------------------------------------------------


def errors_of(kind):
    return [error for error in ray.error_info() if error[b"type"] == kind.encode()]


def data_of(error):
    return json.loads(error[b"data"])


def test_error_info(init):
    init()

    @ray.remote
    def fail():
        raise ValueError("This task failed!!")

    @ray.remote
    def spoil():
        return ray.env.broken

    @ray.remote
    def leave():
        return ray.env.stuck

    ray.env.broken = ray.EnvironmentVariable(lambda: 1 / 0)
    ray.env.stuck = ray.EnvironmentVariable(lambda: 5, lambda value: value / 0)
    assert ray.error_info() == []
    for failing in (fail, spoil):
        with suppress(ValueError, ZeroDivisionError):  # raised at once in PYTHON_MODE
            failing.remote()
    assert ray.get(leave.remote()) == 5
    eventually(lambda: len(ray.error_info()) >= 4, "four errors are known")
    [failed, spoilt] = sorted(errors_of("task"), key=lambda error: data_of(error)["function_name"])
    assert set(failed) == {b"type", b"message", b"data"}
    assert b"ValueError: This task failed!!" in failed[b"message"]
    assert data_of(failed)["function_name"] == "fail"
    assert data_of(spoilt)["function_name"] == "spoil"
    assert failed["message"] == failed[b"message"].decode()
    assert failed["data"] == data_of(failed)
    [registered] = errors_of("register_environment_variable")
    assert b"ZeroDivisionError" in registered[b"message"]
    assert data_of(registered)["task_id"] == data_of(spoilt)["task_id"]
    [reinitialized] = errors_of("reinitialize_environment_variable")
    assert b"ZeroDivisionError" in reinitialized[b"message"]


def test_a_function_that_workers_cannot_load(init, tmp_path, monkeypatch):
    init()
    (tmp_path / "dualray_test_helper.py").write_text("def helper():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import dualray_test_helper

    f = ray.remote(lambda: dualray_test_helper.helper())
    template = f._exported().__reduce__()  # pickled now; what it names is gone before anybody loads it
    monkeypatch.delitem(sys.modules, "dualray_test_helper")
    (tmp_path / "dualray_test_helper.py").unlink()
    load, arguments = template
    g = ray.remote(load(*arguments).__wrapped__)
    with pytest.raises(ModuleNotFoundError, match="dualray_test_helper"):
        ray.get(g.remote())
    eventually(lambda: errors_of("register_remote_function"), "the error is known")
    assert b"No module named" in errors_of("register_remote_function")[0][b"message"]


@pytest.mark.parametrize("init", ["sim", "real"], indirect=True)
def test_global_state(init):
    init(object_id_seed=3)
    big = ray.put(np.zeros(50_000))
    counter = Counter(1)
    ray.get([add.remote(1), counter.increment()])
    eventually(lambda: len(ray.global_state.task_table()) >= 3, "the tasks are in their table")
    tasks = ray.global_state.task_table()
    names = sorted(row["TaskSpec"]["FunctionName"] for row in tasks.values())
    assert names == ["Counter", "Counter.increment", "add"]
    assert {row["State"] for row in tasks.values()} == {"FINISHED"}
    assert ray.global_state.task_table(next(iter(tasks))) == next(iter(tasks.values()))
    eventually(lambda: big.hex() in ray.global_state.object_table(), "the object is in its table")
    row = ray.global_state.object_table(big)
    assert row["DataSize"] > 400_000
    assert row["IsPut"]
    assert row["ManagerIDs"] == ["node-0"]
    assert [client["Deleted"] for clients in ray.global_state.client_table().values() for client in clients] == [False]
    functions = sorted(row["Name"] for row in ray.global_state.function_table().values())
    assert functions == ["Counter", "add"]


def test_object_id_seed_gives_the_same_ids_everywhere(monkeypatch):
    seen = {}
    for mode in ("sim", "real"):
        monkeypatch.setenv("DUALRAY_MODE", mode)
        ray.init(num_cpus=1, object_id_seed=5)
        seen[mode] = [str(ray.put(1)), str(add.remote(1)), *map(str, three.remote()), str(Counter().increment())]
        ray.worker.cleanup()
    assert seen["sim"] == seen["real"]


# ---- PYTHON_MODE -------------------------------------------------------------------------------------------------


def test_python_mode_runs_tasks_here_and_now():
    ray.init(driver_mode=ray.PYTHON_MODE)
    try:
        happened = []
        globals()["_happened"] = happened

        @ray.remote
        def note():
            globals_of_test = sys.modules[__name__]
            globals_of_test._happened.append(dualray.get_runtime_context().mode)
            raise KeyError("raised at once")

        with pytest.raises(KeyError, match="raised at once"):
            note.remote()
        assert happened == ["inline"]
    finally:
        del globals()["_happened"]
        ray.worker.cleanup()
    assert not dualray.is_initialized()


def test_python_mode_deals_in_values():
    ray.init(driver_mode=ray.PYTHON_MODE)
    try:
        assert add.remote(1) == 2
        assert add.remote(add.remote(1), ray.put(5)) == 7
        assert three.remote() == [1, 2, 3]
        assert ray.remote(num_return_vals=0)(lambda: None).remote() is None
        counter = Counter(10)
        assert [counter.increment(), counter.increment.remote(by=2)] == [11, 13]
        assert ray.put({"a": 1}) == {"a": 1}
        assert ray.get("a value") == "a value"
        assert ray.get([1, "two"]) == [1, "two"]
        assert ray.wait([add.remote(1), "b", "b"], num_returns=2) == ([2, "b"], ["b"])
        assert ray.wait(["a"], num_returns=5, timeout=10) == (["a"], [])
        assert ray.get(dualray.put("a reference of today")) == "a reference of today"

        @ray.remote
        def nested(n):
            return sum(add.remote(i) for i in range(n))

        assert nested.remote(4) == 10
    finally:
        ray.worker.cleanup()


def test_python_mode_frees_what_nobody_refers_to():
    ray.init(driver_mode=ray.PYTHON_MODE)
    try:
        shared = dualray.runtime.current("test").verbs.core.shared
        box = ray.put([ray.put(1), ray.put(np.zeros(1000))])
        ray.get(add.remote(np.ones(100_000)))
        handle = Counter()
        assert len(shared.actors) == 1
        assert len(shared.objects) == 0
        del box, handle
        assert (len(shared.objects), len(shared.actors)) == (0, 0)
    finally:
        ray.worker.cleanup()


# ---- Checkpoints -------------------------------------------------------------------------------------------------


class Ledger:
    """Ends its process in the middle of some calls, once each."""

    def __init__(self, tally):
        tally.add("constructed")
        self.tally = tally
        self.entries = []

    def enter(self, entry, fatal=False):
        self.entries.append(entry)
        if fatal and str(entry) not in self.tally.notes:
            self.tally.add(entry)
            os._exit(1)
        if entry == "wrong":
            raise KeyError(entry)
        return list(self.entries)


class Saving(Ledger):
    def __ray_save__(self):
        return ",".join(self.entries), self.tally

    def __ray_restore__(self, kept):
        text, self.tally = kept
        self.tally.add("restored")
        self.entries = text.split(",")


@pytest.mark.parametrize("init", ["sim", "real"], indirect=True)
@pytest.mark.parametrize("cls", [Ledger, Saving])
@pytest.mark.parametrize("interval", [1, 3, 100])
def test_an_actor_with_checkpoints_comes_back_as_it_was(init, tally, interval, cls):
    init()
    ledger = ray.remote(checkpoint_interval=interval)(cls)(tally)
    entries = "abcdefgh"
    answers = [ledger.enter(entry, fatal=entry in "bfh") for entry in entries]
    assert [ray.get(answer)[-1] for answer in answers] == list(entries)
    assert ray.get(answers[-1]) == list(entries)
    with pytest.raises(KeyError):
        ray.get(ledger.enter("wrong"))
    assert ray.get(ledger.enter("i", fatal=True)) == [*entries, "wrong", "i"]
    notes = tally.notes
    assert [note for note in notes if note in [*entries, "i"]] == ["b", "f", "h", "i"]
    assert ("restored" in notes) == (cls is Saving and interval < 100)
    assert notes.count("constructed") == {1: 1, 3: 2, 100: 5}[interval]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"checkpoint_interval": 0}, ValueError, "checkpoint_interval=0 must be at least 1"),
        ({"checkpoint_interval": "1"}, TypeError, "checkpoint_interval='1' must be an int"),
        ({"checkpoint_interval": 1, "max_concurrency": 2}, ValueError, "one call at a time"),
    ],
)
def test_intervals_that_cannot_be(options, error, words):
    with pytest.raises(error, match=words):
        ray.remote(**options)(Ledger)
