"""Modules of the user's: what a virtual worker binds there is its own, and what the driver sets is the driver's."""

from __future__ import annotations

import asyncio
import builtins
import collections
import importlib
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dualray
from dualray.exceptions import SimulationDeadlockError, WorkerCrashedError
from dualray.sim.usercode import modules
from tests.sim.usercode import module_other, module_state

MODES = ("real", "sim")


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    before = dict(sys.modules)
    values = {name: value for name, value in vars(module_state).items() if not name.startswith("__")}

    def begin(mode: str = "sim", **settings: Any) -> Any:
        return dualray.init(mode=mode, num_cpus=2, **settings)

    yield begin
    dualray.shutdown()
    for name, module in before.items():
        assert sys.modules[name] is module
    assert {name: value for name, value in vars(module_state).items() if not name.startswith("__")} == values


def on_two_workers(function: Any, *args: Any) -> list[Any]:
    """The results of two calls on each of two workers, which have begun before."""
    remote = dualray.remote(num_cpus=1)(Runs)
    runners = [remote.remote() for _ in range(2)]
    return [dualray.get([each.run.remote(function, *args) for each in runners]) for _ in range(2)]


Counted: Any = module_state.Counted


class Runs:
    def run(self, function: Any, *args: Any) -> Any:
        return function(*args)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("count", ()),
        ("cache", ("key",)),
        ("count_class", ()),
        ("count_other", ()),
        ("count_imported", ()),
        ("bump", (module_state.Total(1),)),
    ],
)
def test_state_of_a_module_is_each_workers_own(start: Any, mode: str, name: str, args: tuple[Any, ...]) -> None:
    start(mode)
    assert on_two_workers(getattr(module_state, name), *args) == [[1, 1], [2, 2]]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["count", "count_class", "count_other", "count_imported"])
def test_a_function_by_reference_has_its_own_module(start: Any, mode: str, name: str) -> None:
    start(mode)
    function = dualray.remote(max_calls=1)(getattr(module_state, name))
    assert dualray.get([function.remote() for _ in range(4)]) == [1, 1, 1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_what_the_driver_sets_is_the_drivers(start: Any, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    start(mode)
    configured = dualray.remote(module_state.config)
    assert dualray.get(configured.remote()) == 1
    monkeypatch.setattr(module_state, "CONFIG", 5)
    assert dualray.get(configured.remote()) == 1
    assert dualray.get(dualray.remote(num_cpus=2)(module_state.config).remote()) == 1
    monkeypatch.setattr(module_state, "LIMIT", 5)
    monkeypatch.setattr(module_other, "LIMIT", 5)
    assert dualray.get(dualray.remote(module_state.limit).remote()) == 3
    monkeypatch.setattr(module_state, "doubled", lambda x: -x)
    assert dualray.get(dualray.remote(module_state.pure).remote(2)) == 5
    monkeypatch.undo()
    dualray.shutdown()


@pytest.mark.parametrize("mode", MODES)
def test_actors_have_modules_of_their_own(start: Any, mode: str) -> None:
    start(mode)
    actors = [dualray.remote(num_cpus=0)(module_state.Actor).remote() for _ in range(2)]
    assert dualray.get([each.call.remote() for each in actors]) == [(1, 1, 1), (1, 1, 1)]
    assert dualray.get([each.call.remote() for each in actors]) == [(1, 2, 2), (1, 2, 2)]
    assert dualray.get(actors[0].point.remote(7)) == module_state.Point(7, 2)
    assert dualray.get([each.wait.remote(0.01) for each in actors]) == [3, 3]
    with pytest.raises(module_state.MyError):
        dualray.get(actors[0].fail.remote())


@pytest.mark.parametrize("mode", MODES)
def test_a_class_that_comes_by_value_is_each_workers_own(start: Any, mode: str) -> None:
    start(mode)
    actors = [Counted.options(num_cpus=0).remote() for _ in range(3)]
    assert dualray.get([each.call.remote() for each in actors]) == [(1, 1, 1)] * 3


@pytest.mark.parametrize("mode", MODES)
def test_the_drivers_class_stays_as_it_is_when_a_worker_reads_it(start: Any, mode: str) -> None:
    """It was given what it had when the value was pickled, and functions of its own anew."""
    start(mode)

    class Local:
        count = 0

        def one(self) -> int:
            return 1

    @dualray.remote
    def raised(value: Local) -> int:
        type(value).count += 10
        return type(value).count

    @dualray.remote
    def one(value: Local) -> int:
        return value.one()

    method = Local.one
    ref = raised.remote(Local())
    Local.count = 5
    assert dualray.get(ref) == 10
    assert dualray.get(one.remote(Local())) == 1
    assert dualray.get(dualray.remote(Local().one).remote()) == 1
    assert dualray.get(dualray.remote(lambda: Local().one()).remote()) == 1
    assert Local.count == 5
    assert Local.one is method
    assert type(dualray.get(dualray.remote(lambda value: value).remote(Local()))) is Local


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_reads_the_variables_that_a_class_had_when_it_was_pickled(start: Any, mode: str) -> None:
    """A loop of the driver gave them other values before the worker loaded the class, or between two calls."""
    start(mode)
    refs, made, first = [], [], None
    for number in range(3):

        class Local:
            def get(self) -> int:
                return number  # noqa: B023 - the variable of the loop is meant

            @staticmethod
            def get_double() -> int:
                return 2 * number  # noqa: B023 - as above

        made.append(Local)
        actor = dualray.remote(num_cpus=0)(Local).remote()
        refs += [actor.get.remote(), actor.get_double.remote()]
        if first is None:
            first = actor
            assert dualray.get(refs) == [0, 0]
    assert dualray.get(refs) == [0, 0, 1, 2, 2, 4]
    assert first is not None
    assert dualray.get(first.get.remote()) == 0
    passed = dualray.remote(lambda value: value.get()).remote(made[-1]())
    number = 7
    assert dualray.get(passed) == 2


class OfMain:
    """Pickled by the name that it has in `__main__`, like a function that functools.lru_cache has wrapped there."""

    def __init__(self) -> None:
        self.__module__ = "__main__"

    def __reduce__(self) -> str:
        return "of_main"


@pytest.mark.parametrize("mode", MODES)
def test_a_worker_has_no_names_of_the_programs_main_module(
    start: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    start(mode)
    monkeypatch.setattr(sys.modules["__main__"], "of_main", OfMain(), raising=False)
    of_main = vars(sys.modules["__main__"])["of_main"]
    assert dualray.get(dualray.put(of_main)) is of_main
    with pytest.raises(AttributeError, match="of_main"):
        dualray.get(dualray.remote(lambda value: 1).remote(of_main))


@pytest.mark.parametrize("mode", MODES)
def test_values_are_of_the_drivers_classes(start: Any, mode: str) -> None:
    start(mode)
    found = dualray.get(dualray.remote(module_state.point).remote(3))
    assert type(found) is module_state.Point
    assert found == module_state.Point(3, 1)
    assert dualray.get(dualray.remote(module_state.colour).remote()) is module_state.Colour.BLUE
    with pytest.raises(module_state.MyError):
        dualray.get(dualray.remote(module_state.fail).remote())
    refs: Any = dualray.remote(module_state.items).remote(3)
    points = [dualray.get(ref) for ref in refs]
    assert points == [module_state.Point(1), module_state.Point(2), module_state.Point(3)]
    assert dualray.get(dualray.remote(module_state.is_own).remote())


@pytest.mark.parametrize("mode", MODES)
def test_tasks_of_tasks(start: Any, mode: str) -> None:
    start(mode)
    assert dualray.get(dualray.remote(module_state.nested).remote(10)) == (1, 11)


def test_a_task_calls_the_function_that_the_driver_calls(start: Any) -> None:
    runtime = start()
    dualray.get(dualray.remote(module_state.nested).remote(0))
    before = set(runtime.cluster.functions.pickled)
    dualray.get([dualray.remote(module_state.count).remote(), module_state.count_remotely.remote()])
    assert set(runtime.cluster.functions.pickled) == before


@pytest.mark.parametrize("mode", MODES)
def test_what_comes_by_value_names_modules(start: Any, mode: str) -> None:
    start(mode)

    def counts() -> tuple[int, int]:
        module_state.CACHE["n"] = module_state.CACHE.get("n", 0) + 1
        return module_state.CACHE["n"], module_state.count()

    assert dualray.get([dualray.remote(max_calls=1)(counts).remote() for _ in range(3)]) == [(1, 1)] * 3
    assert on_two_workers(counts) == [[(1, 1)] * 2, [(2, 2)] * 2]


@pytest.mark.parametrize("mode", MODES)
def test_threads_of_a_task_see_its_modules(start: Any, mode: str) -> None:
    start(mode)
    threads = dualray.remote(num_cpus=1, max_calls=1)(module_state.count_on_threads)
    assert dualray.get([threads.remote(3) for _ in range(2)]) == [3, 3]


def test_imports_in_a_simulation_bind_what_is_virtual(start: Any) -> None:
    start()
    remote = dualray.remote(max_calls=1)
    sleeping = [remote(module_state.sleeps).remote(1_000) for _ in range(2)]
    assert dualray.get(sleeping) == pytest.approx([1_000, 1_000], abs=1e-3)
    assert dualray.get([remote(module_state.of_thread).remote() for _ in range(2)]) == [1, 1]


def test_random_numbers_of_a_task_are_those_of_its_id(start: Any) -> None:
    drawn = []
    for _ in range(2):
        start(seed=3)
        drawn.append(dualray.get([dualray.remote(max_calls=1)(module_state.draws).remote() for _ in range(2)]))
        dualray.shutdown()
    start(seed=3)
    drawn.append(dualray.get([dualray.remote(module_state.draws).remote() for _ in range(2)]))
    assert drawn[0] == drawn[1] == drawn[2]
    assert len(set(drawn[0])) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_module_reads_the_environment_of_its_worker(start: Any, mode: str) -> None:
    start(mode)
    env = {"env_vars": {"DUALRAY_TEST_HOME": "here"}}
    homes = [dualray.remote(runtime_env=each)(module_state.home).remote() for each in (env, None)]
    assert dualray.get(homes) == [("here", "here"), ("nowhere", None)]


def imports() -> list[str]:
    found: list[str] = builtins.__dict__["dualray_test_imports"]
    return found


def test_a_pure_function_is_not_imported_anew(start: Any) -> None:
    start()
    before = len(imports())
    pure = dualray.remote(module_other.doubled)
    assert dualray.get([pure.remote(i) for i in range(20)]) == [2 * i for i in range(20)]
    assert len(imports()) == before


def test_who_could_tell_nothing_pays_nothing(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start(nodes=500)
    shown: list[Any] = []
    monkeypatch.setattr(modules.SHOWN, "show", shown.append)
    seconds = {"duration": 1.0}
    functions = [dualray.remote(**seconds)(each) for each in (module_other.doubled, lambda x: 2 * x)]
    refs = [function.remote(i) for function in functions for i in range(1_000)]
    assert dualray.get(refs) == 2 * [2 * i for i in range(1_000)]
    assert shown == 2 * 2 * [None]  # each function was looked at, once
    monkeypatch.undo()


def test_constants_are_imported_once(start: Any) -> None:
    before = -1
    for _ in range(2):
        start(nodes=4)
        dualray.get([dualray.remote(module_state.config).remote() for _ in range(16)])
        before = len(imports())
        dualray.shutdown()
    assert len(imports()) == before


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], Any]]:
    """Write a module, and import it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []

    def make(name: str, text: str) -> Any:
        (tmp_path / f"{name}.py").write_text(text)
        names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    yield make
    for name in names:
        sys.modules.pop(name, None)


COUNTS = """
n = 0
def count():
    global n
    n += 1
    return n
"""


def counts_on_two(module: Any) -> list[int]:
    function = dualray.remote(max_calls=1)(module.count)
    found: list[int] = dualray.get([function.remote() for _ in range(2)])
    return found


def test_a_module_that_cannot_be_imported_again_is_shared(
    write: Any, start: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    module = write(
        "imported_once", f"import builtins\nassert not hasattr(builtins, 'once')\nbuiltins.once = 1\n{COUNTS}"
    )
    try:
        runtime = start()
        assert counts_on_two(module) == [1, 2]
        assert module.n == 2
        [why] = runtime.cluster.modules.shared.values()
        assert why == "it cannot be imported a second time (AssertionError: )"
        told = capsys.readouterr().err
        assert told.count("imported_once") == 1
        assert "share the globals of the module imported_once" in told
        dualray.shutdown()
    finally:
        del builtins.once  # type: ignore[attr-defined]


def test_a_module_that_was_made_by_hand_is_shared(start: Any) -> None:
    made: Any = ModuleType("made_by_hand")
    sys.modules["made_by_hand"] = made
    try:
        exec(COUNTS, vars(made))
        start()
        assert counts_on_two(made) == [1, 2]
        dualray.shutdown()
    finally:
        del sys.modules["made_by_hand"]


def test_a_program_that_is_being_imported_is_shared(write: Any) -> None:
    module = write(
        "runs_at_import",
        f"""
import dualray
from tests.sim.usercode import module_state
{COUNTS}
dualray.init(mode="sim", num_cpus=2)
results = dualray.get([dualray.remote(max_calls=1)(count).remote() for _ in range(2)])
others = dualray.get([dualray.remote(max_calls=1)(module_state.count).remote() for _ in range(2)])
dualray.shutdown()
""",
    )
    assert (module.results, module.others, module.n) == ([1, 2], [1, 1], 2)
    assert sys.modules["runs_at_import"] is module


def test_packages_of_libraries_are_everybodys(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    space: Any = ModuleType("space_of_libraries")
    space.__path__ = [sysconfig.get_path("purelib") + "/space_of_libraries"]
    space.__spec__ = ModuleSpec("space_of_libraries", None, is_package=True)
    monkeypatch.setitem(sys.modules, "space_of_libraries", space)
    start()
    looks = dualray.remote(lambda: (module_state.count(), "space_of_libraries" in sys.modules, __name__ in sys.modules))
    assert dualray.get(looks.remote()) == (1, True, False)


@pytest.mark.parametrize("folder", ["dist-packages", "site-packages"])
def test_libraries_of_another_folder_of_packages_are_everybodys(
    folder: str, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / folder
    place.mkdir()
    (place / "installed_elsewhere.py").write_text(COUNTS)
    monkeypatch.syspath_prepend(str(place))
    module = importlib.import_module("installed_elsewhere")
    try:
        start()
        assert counts_on_two(module) == [1, 2]
        assert module.n == 2
    finally:
        del sys.modules["installed_elsewhere"]


def test_a_module_may_sleep_while_it_is_imported(write: Any, start: Any) -> None:
    module = write("sleeps_at_import", f"from time import sleep, time\nbegan = time()\nsleep(0.01)\n{COUNTS}")
    module.slept = None
    start()

    def counts() -> tuple[int, bool]:
        import sleeps_at_import  # type: ignore[import-not-found]  # made by this test

        return sleeps_at_import.count(), hasattr(sleeps_at_import, "slept")

    function = dualray.remote(max_calls=1)(counts)
    assert dualray.get([function.remote() for _ in range(4)]) == [(1, False)] * 4
    assert counts_on_two(module) == [1, 1]


def test_what_a_module_changes_at_import_is_its_workers(write: Any, start: Any) -> None:
    module = write("sets_at_import", f"import os\nos.environ['SET_AT_IMPORT'] = 'at import'\n{COUNTS}")
    os.environ["SET_AT_IMPORT"] = "by the driver"
    try:
        start()
        counts = dualray.remote(max_calls=1)(lambda: (module.count(), os.environ["SET_AT_IMPORT"]))
        assert dualray.get([counts.remote() for _ in range(2)]) == [(1, "at import")] * 2
        assert dualray.get(dualray.remote(lambda: os.environ["SET_AT_IMPORT"]).remote()) == "by the driver"
        assert os.environ["SET_AT_IMPORT"] == "by the driver"
        dualray.shutdown()
        assert os.environ["SET_AT_IMPORT"] == "by the driver"
    finally:
        del os.environ["SET_AT_IMPORT"]


def test_what_a_module_changes_as_it_is_imported_for_many_is_not_the_drivers(write: Any, start: Any) -> None:
    text = "import os, sys, random\nrandom.seed(1)\nos.environ['SET_FOR_MANY'] = 'x'\nsys.path.append('/x')\nK = 1\n"
    module = write("changes_at_import", f"{text}def constant():\n    return K\n")
    sys.path.remove("/x")
    del os.environ["SET_FOR_MANY"]
    start()
    module.K = 2
    assert dualray.get(dualray.remote(module.constant).remote()) == 1
    assert "SET_FOR_MANY" not in os.environ
    assert "/x" not in sys.path


def test_what_the_driver_imports_later_is_the_drivers(write: Any, start: Any) -> None:
    start()
    assert dualray.get(dualray.remote(module_state.count).remote()) == 1
    module = write("imported_later", COUNTS)
    assert [module.count(), *counts_on_two(module)] == [1, 1, 1]
    assert sys.modules["imported_later"] is module


def test_functions_among_arguments_have_modules_of_their_own(start: Any) -> None:
    start()
    function = dualray.remote(max_calls=1)(module_state.applied)
    assert dualray.get([function.remote(module_state.count) for _ in range(2)]) == [1, 1]
    assert dualray.get([function.remote(lambda: module_state.cache("x")) for _ in range(2)]) == [1, 1]
    ref = dualray.put([module_state.Total(1)] * 1_000)
    assert dualray.get([function.remote(lambda them: them[0].bump(), ref) for _ in range(2)]) == [1, 1]


def test_a_worker_that_gets_modules_of_its_own_later_keeps_what_it_had(start: Any) -> None:
    start()
    keeps: Any = dualray.remote(module_other.Keeps).remote()
    assert type(dualray.get(keeps.keep.remote(module_other.Plain(4)))) is module_other.Plain
    assert dualray.get(keeps.run.remote(module_state.config)) == 1
    assert dualray.get(keeps.keep.remote(module_state.Point(1, 2))) == module_other.Plain(4)
    assert dualray.get(keeps.run.remote(module_state.count)) == 1
    found = dualray.get(keeps.keep.remote([module_other.doubled, module_other.Plain]))
    assert type(found) is module_state.Point
    assert found == module_state.Point(1, 2)
    assert dualray.get(keeps.keep.remote(None)) == [module_other.doubled, module_other.Plain]


def test_what_a_worker_passes_on_by_name_is_the_next_ones_own(start: Any) -> None:
    start()
    keeps: Any = dualray.remote(module_other.Keeps).remote()
    dualray.get(keeps.keep.remote([module_other.doubled, module_other.Plain]))
    assert dualray.get(keeps.run.remote(module_state.count)) == 1
    passed = keeps.keep.remote(None)  # it pickles what it was given before it had modules of its own

    def applies(passed: Any) -> tuple[int, bool]:
        function, cls = passed
        return function(4), cls is module_other.Plain

    assert dualray.get(dualray.remote(applies).remote(passed)) == (8, True)
    assert dualray.get(dualray.remote(lambda module: module.count()).remote(module_state)) == 1
    assert module_state.COUNT == 0


def test_what_is_deep_in_a_librarys_object_is_found(start: Any) -> None:
    start()
    made: dict[str, int] = collections.defaultdict(module_state.count)
    counts = dualray.remote(max_calls=1)(lambda: made["x"])
    assert dualray.get([counts.remote() for _ in range(2)]) == [1, 1]


def test_the_driver_may_have_made_constant_what_was_not(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    start()
    monkeypatch.setattr(module_state, "CACHE", ())
    found = dualray.remote(max_calls=1)(module_state.cached)
    assert dualray.get([found.remote() for _ in range(2)]) == [1, 1]
    monkeypatch.undo()


def test_a_module_that_the_driver_imports_anew_is_imported_anew_for_all(write: Any, start: Any) -> None:
    for number in (1, 2):
        sys.modules.pop("written_twice", None)
        module = write("written_twice", f"K = {number}\n{'#' * number}\ndef constant():\n    return K\n")
        start()
        assert dualray.get(dualray.remote(module.constant).remote()) == number
        dualray.shutdown()


def test_an_awaited_value_is_of_the_drivers_class(start: Any) -> None:
    start()

    async def awaits() -> Any:
        return await dualray.remote(module_state.point).remote(3)

    assert type(asyncio.run(awaits())) is module_state.Point


def test_modules_are_as_they_were_after_a_deadlock_and_a_death(start: Any) -> None:
    start()

    def waits() -> None:
        module_state.count()
        threading.Event().wait()

    def ends() -> None:
        module_state.count()
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        dualray.get(dualray.remote(max_retries=0)(ends).remote())
    with pytest.raises(SimulationDeadlockError):
        dualray.get(dualray.remote(waits).remote())
    assert sys.modules["tests.sim.usercode.module_state"] is module_state
    assert modules.SHOWN.view is None


def test_a_second_simulation_begins_anew(start: Any) -> None:
    for _ in range(2):
        start()
        function = dualray.remote(module_state.count)
        assert [dualray.get(function.remote()) for _ in range(2)] == [1, 2]
        dualray.shutdown()
        assert sys.modules["tests.sim.usercode.module_state"] is module_state


def test_another_thread_may_import_while_modules_are_looked_for(monkeypatch):
    """As the thread that watches the memory does: here between any two names."""

    class Importing(set[str]):
        def __contains__(self, name: object) -> bool:
            monkeypatch.setitem(sys.modules, f"imported_beside_{name}", ModuleType("imported"))
            return super().__contains__(name)

    shown = modules.Shown()
    shown._others = Importing()
    shown.look()
    assert "imported_beside_sys" in sys.modules
