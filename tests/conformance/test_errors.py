from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import threading
import weakref

import pytest

import dualray as ray
from dualray.exceptions import (
    ActorDiedError,
    DualrayError,
    ObjectLostError,
    OwnerDiedError,
    RayTaskError,
    TaskError,
    UnserializableException,
    WorkerCrashedError,
)
from tests.conformance.support import eventually, get, in_words, stderr_so_far

pytestmark = pytest.mark.usefixtures("cluster")


class Simple(Exception):
    pass


class WithCode(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Odd(Exception):
    """Its constructor cannot be called with `args`."""

    def __init__(self, first, *, second):
        super().__init__(f"{first} and {second}")
        self.first = first
        self.second = second


class Slotted(Exception):
    __slots__ = ("detail",)

    def __init__(self, detail):
        super().__init__("slotted")
        self.detail = detail


class Holder(Exception):
    """Cannot be pickled."""

    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Stern(Exception):
    def __init__(self, n):
        if not isinstance(n, int):
            raise TypeError("n must be an int")
        super().__init__(f"stern {n}")


@ray.remote
def fail(exception):
    raise exception


@ray.remote
def fail_with(make):
    raise make()


@ray.remote
def echo(value):
    return value


@ray.remote
class Echo:
    def echo(self, value):
        return value


@ray.remote
def level_one(message):
    value = int("12")
    return 1 / (value - 12) if message is None else deeper(message)


def deeper(message):
    raise Simple(message)  # this line is in the remote traceback


@ray.remote
def level_two(ref_or_value):
    return ray.get(level_one.remote(ref_or_value), timeout=10)


def error_of(ref):
    with pytest.raises(DualrayError) as caught:
        get(ref)
    return caught.value


# ---- What get raises -----------------------------------------------------------------------------------------------


def test_the_error_is_a_task_error_and_of_the_users_own_type():
    error = error_of(fail.remote(Simple("message")))
    assert isinstance(error, TaskError)
    assert isinstance(error, Simple)
    assert RayTaskError is TaskError
    assert type(error.cause) is Simple
    assert error.cause.args == ("message",)
    assert error.args == ("message",)


def test_the_error_has_function_and_remote_traceback():
    error = error_of(level_one.remote("over here"))
    assert error.function_name == "level_one"
    text = str(error)
    assert text.startswith("level_one raised")
    assert "Traceback (most recent call last)" in error.remote_traceback
    assert "raise Simple(message)  # this line is in the remote traceback" in error.remote_traceback
    assert "in deeper" in error.remote_traceback
    assert "test_errors.py" in error.remote_traceback
    assert "Simple: over here" in text
    assert "core_worker" not in text


def test_every_get_raises_it_again():
    ref = fail.remote(Simple("again"))
    first, second = error_of(ref), error_of(ref)
    assert str(first) == str(second)
    assert isinstance(second, Simple)


def test_all_results_have_the_error():
    for ref in fail.options(num_returns=3).remote(Simple("all")):
        assert isinstance(error_of(ref), Simple)


@pytest.mark.parametrize(
    ("make", "check"),
    [
        (lambda: KeyError("key"), lambda error: error.args == ("key",)),
        (lambda: ZeroDivisionError(), lambda error: error.args == ()),
        (lambda: StopIteration(3), lambda error: error.value == 3),
        (lambda: FileNotFoundError(2, "none", "a.txt"), lambda error: (error.errno, error.filename) == (2, "a.txt")),
        (lambda: UnicodeDecodeError("utf8", b"\xff", 0, 1, "bad"), lambda error: (error.start, error.end) == (0, 1)),
        (lambda: SyntaxError("bad", ("f.py", 3, 1, "x =", 3, 2)), lambda error: error.lineno == 3),
        (lambda: ImportError("no", name="thing"), lambda error: error.name == "thing"),
        (lambda: json.JSONDecodeError("bad", "{", 1), lambda error: (error.pos, error.doc) == (1, "{")),
        (lambda: subprocess.CalledProcessError(2, ["ls"]), lambda error: (error.returncode, error.cmd) == (2, ["ls"])),
        (lambda: ExceptionGroup("many", [ValueError(1)]), lambda error: isinstance(error.exceptions[0], ValueError)),
        (lambda: WithCode("with code", 17), lambda error: error.code == 17),
        (lambda: Odd(1, second=2), lambda error: (error.first, error.second) == (1, 2)),
        (lambda: Slotted("detail"), lambda error: error.detail == "detail"),
        (lambda: Stern(4), lambda error: error.args == ("stern 4",)),
    ],
    ids=lambda value: "",
)
def test_exceptions_keep_type_and_attributes(make, check):
    original = make()
    error = error_of(fail_with.remote(make))
    assert isinstance(error, TaskError)
    assert isinstance(error, type(original))
    assert type(error.cause) is type(original)
    assert check(original) and check(error.cause) and check(error)
    assert type(original).__name__ in str(error)


def test_an_exception_class_of_a_function_can_be_caught():
    class Local(Exception):
        pass

    @ray.remote
    def fail_locally():
        raise Local("local")

    with pytest.raises(Local, match="local"):
        get(fail_locally.remote())


def test_an_exception_that_cannot_be_pickled_is_told_in_words():
    error = error_of(fail_with.remote(Holder))
    assert isinstance(error, TaskError)
    assert "Holder: holds a lock" in str(error)
    assert "could not be pickled" in str(error)
    assert "lock" in str(error)
    assert type(error.cause) is DualrayError
    assert "Holder isn't serializable" in str(error.cause)
    assert "raise make()" in str(error.cause)


class Unreadable(Exception):
    """Can be pickled, but not unpickled."""

    def __reduce__(self):
        return int, ("no number",)


class Refusing:
    def __reduce__(self):
        raise LookupError("it stays here")


@ray.remote
def refusing():
    return Refusing()


def test_an_exception_that_cannot_be_unpickled_is_told_in_words():
    error = error_of(fail_with.remote(Unreadable))
    assert isinstance(error, TaskError)
    assert isinstance(error, UnserializableException)
    assert "Unreadable can be pickled, but not unpickled: invalid literal for int()" in str(error.cause)
    assert "raise make()" in str(error)


def test_what_a_method_of_pickling_raises_reaches_the_caller_under_its_own_type():
    for submit in (lambda: ray.put([Refusing()]), lambda: echo.remote(Refusing())):
        with pytest.raises(LookupError, match="it stays here") as caught:
            submit()
        assert isinstance(caught.value, TypeError)
        again = pickle.loads(pickle.dumps(caught.value))
        assert isinstance(again, LookupError)
        assert str(again) == str(caught.value)
    error = error_of(refusing.remote())
    assert isinstance(error, TaskError)
    assert isinstance(error, LookupError)
    assert "it stays here" in str(error)


def test_the_error_reads_as_in_ray():
    error = error_of(fail.remote(ValueError("boom")))
    assert repr(error) == "RayTaskError(ValueError)(ValueError('boom'))"
    again = error.as_instanceof_cause()
    assert isinstance(again, ValueError) and again.cause.args == ("boom",)


def test_notes_and_chained_causes_are_in_the_remote_traceback():
    @ray.remote
    def chained():
        try:
            int("x")
        except ValueError as error:
            problem = Simple("outer")
            problem.add_note("a note")
            raise problem from error

    text = str(error_of(chained.remote()))
    assert "invalid literal for int()" in text
    assert "direct cause" in text
    assert "Simple: outer" in text
    assert "a note" in text


# ---- Through other tasks -------------------------------------------------------------------------------------------


def test_an_error_goes_through_two_levels_of_tasks():
    error = error_of(level_two.remote("deep"))
    assert isinstance(error, Simple)
    assert "level_two" in str(error)
    assert "level_one" in str(error)
    assert "raise Simple(message)  # this line is in the remote traceback" in str(error)
    assert type(error.cause) is Simple


def test_what_needs_the_result_of_a_task_that_crashed_has_a_task_error():
    @ray.remote(max_retries=0)
    def die():
        os._exit(1)

    ref = die.remote()
    crashed = error_of(ref)
    assert isinstance(crashed, WorkerCrashedError) and not isinstance(crashed, TaskError)
    for needing in (echo.remote(ref), echo.remote(echo.remote(ref))):
        error = error_of(needing)
        assert isinstance(error, TaskError) and isinstance(error, WorkerCrashedError)
        assert type(error.cause) is WorkerCrashedError
        assert str(crashed) in str(error)


def test_a_task_whose_argument_is_lost_has_a_task_error():
    @ray.remote
    class Keeper:
        def put(self):
            return [ray.put("owned by the actor")]

        def die(self):
            os._exit(1)

    keeper = Keeper.remote()
    [ref] = get(keeper.put.remote())
    assert isinstance(error_of(keeper.die.remote()), ActorDiedError)

    def is_lost():
        try:
            ray.get(ref, timeout=10)
        except ObjectLostError as error:
            return not isinstance(error, TaskError)
        return False

    eventually(is_lost, "the owner's death is known")
    for needing in (echo.remote(ref), echo.remote(echo.remote(ref)), Echo.remote().echo.remote(ref)):
        error = error_of(needing)
        assert isinstance(error, TaskError) and isinstance(error, OwnerDiedError)
        assert type(error.cause) is OwnerDiedError
        assert error.function_name in ("echo", "Echo.echo")


def test_a_task_may_catch_the_users_type():
    @ray.remote
    def careful():
        try:
            ray.get(level_one.remote(None), timeout=10)
        except ZeroDivisionError as error:
            return f"caught {type(error.cause).__name__}"

    assert get(careful.remote()) == "caught ZeroDivisionError"


def test_what_depends_on_a_failed_task_has_its_error_and_does_not_run(tally):
    @ray.remote
    def downstream(*_):
        tally.add()

    failed = fail.remote(Simple("upstream"))
    error = error_of(downstream.remote(1, failed))
    assert isinstance(error, Simple)
    assert error.function_name == "fail"
    assert isinstance(
        error_of(downstream.remote(x=downstream.remote(failed)) if False else echo.remote(downstream.remote(failed))),
        Simple,
    )
    assert tally.count == 0


def test_an_actor_method_with_a_failed_argument_has_its_error_and_the_actor_lives():
    actor = Echo.remote()
    assert isinstance(error_of(actor.echo.remote(fail.remote(Simple("argument")))), Simple)
    assert get(actor.echo.remote(1)) == 1


def test_a_failed_reference_inside_a_container_raises_only_when_it_is_read():
    @ray.remote
    def read(refs):
        try:
            ray.get(refs[0], timeout=10)
        except Simple as error:
            return f"read {error.args[0]}"

    assert get(read.remote([fail.remote(Simple("inside"))])) == "read inside"


def test_exceptions_are_values_too():
    value = get(ray.put(ValueError("a value")))
    assert isinstance(value, ValueError) and value.args == ("a value",)
    returned = get(echo.remote(Odd(1, second=2)))
    assert isinstance(returned, Odd) and returned.second == 2


def test_a_task_error_can_be_returned_as_a_value():
    @ray.remote
    def collect():
        try:
            ray.get(fail.remote(WithCode("kept", 3)), timeout=10)
        except Exception as error:  # noqa: BLE001  # whatever it is
            return error

    error = get(collect.remote())
    assert isinstance(error, TaskError)
    assert isinstance(error, WithCode)
    assert error.code == 3


def test_a_result_that_cannot_be_pickled_names_itself():
    @ray.remote
    def return_lock():
        return {"key": [threading.Lock()]}

    error = error_of(return_lock.remote())
    assert isinstance(error, TypeError)
    assert in_words("return value 0 of return_lock['key'][0]", "cannot pickle '_thread.lock' object") in str(error)


def test_an_error_that_nobody_reads_is_told_once(capfd):
    read = fail.remote(Simple("this one is read"))
    assert isinstance(error_of(read), Simple)
    unread = fail.remote(Simple("unread"))
    ray.wait([unread], timeout=10)
    del read, unread
    assert get(echo.remote(1)) == 1
    eventually(lambda: "Simple: unread" in stderr_so_far(), "the error is told")
    told = capfd.readouterr().err
    assert told.count("Simple: unread") == 1
    assert told.count("failed, and the program never read its error") == 1
    assert "this one is read" not in told


def test_a_get_reads_the_errors_of_all_its_references(capsys, gate):
    @ray.remote
    def fail_late(gate):
        gate.wait()
        raise Simple("late")

    refs = [fail.remote(Simple("first")), fail_late.remote(gate)]
    with pytest.raises(Simple, match="first"):
        get(refs)
    gate.open()
    ray.wait(refs, num_returns=2, timeout=10)
    del refs
    assert get(echo.remote(1)) == 1
    assert "late" not in capsys.readouterr().err


def test_a_failed_task_frees_what_it_held():
    assert all(isinstance(error_of(fail.remote(Simple(str(index)))), Simple) for index in range(20))
    assert get([echo.remote(index) for index in range(4)]) == [0, 1, 2, 3]


def test_texts_with_lone_surrogates(cluster):
    """`os.fsdecode` makes them of a file name that is not UTF-8; no message may break on them."""
    name = "caf\udce9"

    @ray.remote(max_retries=0)
    def fails():
        raise ValueError(f"cannot read {name}")

    @ray.remote(num_cpus=0)
    class Reader:
        def __init__(self, path=""):
            if path:
                raise ValueError(f"cannot read {path}")
            self.calls = 0

        def read(self):
            self.calls += 1
            if self.calls == 1:
                raise ValueError(f"cannot read {name}")
            return self.calls

    for options in ({}, {"name": name}):
        with pytest.raises(ValueError, match=name):
            get(fails.options(**options).remote())
    reader = Reader.options(name=name).remote()
    with pytest.raises(ValueError, match=name):
        get(reader.read.remote())
    assert get(ray.get_actor(name).read.remote()) == 2  # it kept its state
    with pytest.raises(ActorDiedError, match=name):
        get(Reader.remote(name).read.remote())


class Guarded(Exception):
    """Nobody can read an attribute of it, not even its class."""

    def __getattribute__(self, name):
        raise RuntimeError(f"{name} is guarded")


class GuardedTraceback(Exception):
    __traceback__ = property(lambda self: 1 / 0)


class GuardedCause(Exception):
    __cause__ = property(lambda self: 1 / 0)


class GuardedArguments(Exception):
    args = property(lambda self: 1 / 0)


class Wordless(Exception):
    def __str__(self):
        raise Wordless


class Unsendable(Exception):
    def __reduce__(self):
        raise Wordless


@pytest.mark.parametrize("kind", [Guarded, GuardedTraceback, GuardedCause, GuardedArguments, Wordless, Unsendable])
def test_an_exception_whose_own_code_raises_is_its_tasks_error(kind):
    @ray.remote(max_retries=0)
    def fails():
        raise kind

    @ray.remote(num_cpus=0)
    class Raiser:
        def __init__(self, is_broken=False):
            if is_broken:
                raise kind
            self.calls = 0

        def call(self):
            self.calls += 1
            if self.calls == 1:
                raise kind
            return self.calls

        def items(self):
            yield 1
            raise kind

    @ray.remote(num_cpus=0)
    class AsyncRaiser:
        async def call(self):
            raise kind

    for _ in range(3):  # more often than there are workers
        with pytest.raises(TaskError, match=kind.__name__):
            get(fails.remote())
    raiser = Raiser.remote()
    for call in (raiser.call, AsyncRaiser.remote().call):
        with pytest.raises(TaskError, match=kind.__name__):
            get(call.remote())
    assert get(raiser.call.remote()) == 2  # it kept its state
    items = raiser.items.options(num_returns="streaming").remote()
    assert get(next(items)) == 1
    with pytest.raises(TaskError, match=kind.__name__):
        get(next(items))
    with pytest.raises(ActorDiedError, match=kind.__name__):
        get(Raiser.remote(True).call.remote())
    assert get(echo.remote(1)) == 1


def test_an_error_that_is_longer_than_a_message_leaves_its_actor_alive():
    @ray.remote(num_cpus=0)
    class Talker:
        def __init__(self):
            self.calls = 0

        def talk(self, length):
            self.calls += 1
            if length:
                raise ValueError("begin" + "x" * length + "end")
            return self.calls

    talker = Talker.remote()
    with pytest.raises(ValueError) as raised:
        get(talker.talk.remote(300_000_000))
    text = raised.value.remote_traceback
    assert "ValueError: beginxxx" in text and text.endswith("xxxend\n")
    assert "characters left out" in text and len(text) < 2_000_000
    assert get(talker.talk.remote(0)) == 2


def test_a_failed_task_leaves_no_cycle_that_keeps_its_variables():
    """The collector may not run for long: the frame of a failed task ends with it."""

    @ray.remote(num_cpus=0)
    class Failing:
        def __init__(self):
            gc.collect()
            gc.disable()
            self.made = []

        def call(self):
            local = Simple("a local variable")
            self.made.append(weakref.ref(local))
            raise ValueError(local)

        def kept(self):
            gc.enable()
            return [one() is not None for one in self.made]

    failing = Failing.remote()
    with pytest.raises(ValueError, match="local"):
        get(failing.call.remote())
    assert get(failing.kept.remote()) == [False]
