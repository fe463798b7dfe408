"""runtime_env, max_calls and the exceptions of retry_exceptions: how a task's worker is, and when it ends."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError, RuntimeEnvSetupError
from tests.conformance.support import Tally, get, mark_of_process

NAME = "DUALRAY_TEST_OF_RUNTIME_ENV"


CLUSTER = {"nodes": 1, "runtime_env": {"env_vars": {f"{NAME}_JOB": "job"}}}

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(num_cpus=0)
def variable(name=NAME):
    return os.environ.get(name)


@ray.remote(num_cpus=0)
def here():
    return str(Path.cwd()), sys.path[:2]


@ray.remote(num_cpus=0)
def import_it(name):
    module = __import__(name)
    return module.VALUE


def with_variable(value):
    return {"env_vars": {NAME: value}}


def write_module(directory, value):
    directory.mkdir(exist_ok=True)
    (directory / "module_of_a_runtime_env.py").write_text(f"VALUE = {value!r}\n")
    return str(directory)


# ---- runtime_env -----------------------------------------------------------------------------------------------------


def test_variables_of_a_task():
    one, other = (variable.options(runtime_env=with_variable(value)) for value in "ab")
    assert get([one.remote(), other.remote(), variable.remote(), one.remote()]) == ["a", "b", None, "a"]
    assert NAME not in os.environ


@pytest.mark.parametrize("nothing", [None, {}])
def test_an_environment_of_nothing_leaves_that_of_a_function_and_replaces_that_of_a_class(nothing):
    @ray.remote(num_cpus=0, runtime_env=with_variable("decorated"))
    def decorated():
        return os.environ.get(NAME)

    @ray.remote(num_cpus=0, runtime_env=with_variable("decorated"))
    class Decorated:
        def variable(self):
            return os.environ.get(NAME)

    assert get(decorated.options(runtime_env=nothing).remote()) == "decorated"
    actor = Decorated.options(runtime_env=nothing).remote()
    assert get(actor.variable.remote()) is None
    assert get(decorated.options(runtime_env={"env_vars": {"OTHER": "x"}}).remote()) is None


def test_a_variable_can_stand_in_the_value_of_another():
    value = "a:${" + NAME + "_JOB}:$HOME:${NOT_SET_ANYWHERE}"
    assert get(variable.options(runtime_env=with_variable(value)).remote()) == f"a:job:{os.environ['HOME']}:"


def test_variables_of_init_are_everybodys():
    assert get(variable.remote(f"{NAME}_JOB")) == "job"
    assert get(variable.options(runtime_env=with_variable("a")).remote(f"{NAME}_JOB")) == "job"
    assert ray.get_runtime_context().runtime_env == {"env_vars": {f"{NAME}_JOB": "job"}}


def test_children_have_the_variables_of_their_parent():
    @ray.remote(num_cpus=0, runtime_env=with_variable("parent"))
    def parent():
        inner = variable.options(runtime_env={"env_vars": {"OTHER": "x"}})
        return ray.get(
            [variable.remote(), inner.remote(), inner.remote("OTHER")]
        ), ray.get_runtime_context().runtime_env

    values, environment = get(parent.remote())
    assert values == ["parent", "parent", "x"]
    assert environment == {"env_vars": {NAME: "parent", f"{NAME}_JOB": "job"}}


def test_an_actor_has_its_variables_for_life():
    @ray.remote
    class Reader:
        def __init__(self):
            self.first = os.environ.get(NAME)

        def read(self):
            return self.first, os.environ.get(NAME)

    one, other = Reader.options(runtime_env=with_variable("a")).remote(), Reader.remote()
    assert get([one.read.remote(), other.read.remote()]) == [("a", "a"), (None, None)]


def test_workers_are_not_shared_between_environments():
    process = ray.remote(num_cpus=0)(mark_of_process)
    marks = {value: get(process.options(runtime_env=with_variable(value)).remote()) for value in "abab"}
    assert len(set(marks.values())) == 2
    assert get(process.remote()) not in marks.values()


def test_working_dir(tmp_path):
    (tmp_path / "data.txt").write_text("found")

    @ray.remote(runtime_env={"working_dir": str(tmp_path)})
    def read():
        return Path("data.txt").read_text()

    before = Path.cwd()
    assert get(read.remote()) == "found"
    directory, path = get(here.options(runtime_env={"working_dir": str(tmp_path)}).remote())
    assert directory == str(tmp_path)
    assert path[0] == str(tmp_path)
    assert Path.cwd() == before
    assert str(tmp_path) not in sys.path


def test_each_environment_imports_its_own_modules(tmp_path):
    places = {value: write_module(tmp_path / value, value) for value in ("one", "two")}
    for value, place in [*places.items(), *places.items()]:
        task = import_it.options(runtime_env={"working_dir": place})
        assert get(task.remote("module_of_a_runtime_env")) == value
    task = import_it.options(runtime_env={"py_modules": [f"{places['one']}/module_of_a_runtime_env.py"]})
    assert get(task.remote("module_of_a_runtime_env")) == "one"
    with pytest.raises(ModuleNotFoundError):
        get(import_it.options(max_retries=0).remote("module_of_a_runtime_env"))
    assert "module_of_a_runtime_env" not in sys.modules


@pytest.mark.parametrize(
    ("environment", "error", "message"),
    [
        ({"uv": 5}, TypeError, "uv=5 must be a list of requirements"),
        ({"uv": ["numpy"], "pip": ["numpy"]}, ValueError, "has both 'pip' and 'uv'"),
        ({"pip": 5}, TypeError, "must be a list of requirements"),
        ({"pip": ["numpy >> 2"]}, ValueError, "which is not a requirement such as 'numpy>=2'"),
        ({"pip": ["x @ https://host/x.whl"]}, ValueError, "dualray downloads no packages"),
        ({"pip": "/no/such/file.txt"}, ValueError, "cannot be read: No such file"),
        ({"pip": {"package": []}}, ValueError, "pip has no key 'package'. Known: packages"),
        ({"env_vars": {"A": 1}}, TypeError, "both the key and the value must be str"),
        ({"env_vars": ["A"]}, TypeError, "must be a dict whose keys and values are str"),
        ({"py_modules": "path"}, TypeError, "must be a list of paths"),
        ({"working_dir": "s3://bucket/code.zip"}, ValueError, "must be a local path"),
        (
            {"working_dir": "/no/such/directory"},
            RuntimeEnvSetupError,
            "working_dir='/no/such/directory' is not a directory",
        ),
        ({"working_dir": "/no/such/directory"}, ValueError, "is not a directory"),  # as in Ray
        ({"py_modules": ["/no/such/module.py"]}, ValueError, "does not exist"),
        ({"conda": 3}, TypeError, "conda=3 must be a str or a dict"),
        ({"conda": "base", "pip": ["numpy"]}, ValueError, "conda cannot be specified at the same time as pip or uv"),
        (
            {"py_modules": ["/no/such/module.py"]},
            RuntimeEnvSetupError,
            "'/no/such/module.py', which does not exist on this node",
        ),
        ("text", TypeError, "must be a dict"),
    ],
)
def test_environments_that_cannot_be(environment, error, message):
    with pytest.raises(error) as raised:
        variable.options(runtime_env=environment)
    assert message in str(raised.value)


def test_an_environment_with_an_unknown_key_is_refused():
    with pytest.raises(ValueError, match=r"has no key 'env_var'\. Did you mean 'env_vars'"):
        variable.options(runtime_env={"env_var": {}})


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"pip": ["numpy>=99"]}, "pip: 'numpy>=99' differs from the installed version ("),
        ({"uv": ["no-such-package==1"]}, "Run `pip install no-such-package==1` on each node"),
        (
            {"conda": {"dependencies": ["numpy"]}},
            "dualray cannot set up 'conda' for a worker. Start the cluster in the conda environment",
        ),
        ({"image_uri": "image"}, "dualray cannot set up 'image_uri' for a worker. Start the cluster in the container"),
    ],
)
def test_environments_that_no_worker_can_set_up(environment, message):
    """As in Ray, `get` raises the error, and not the call that submits."""

    @ray.remote(num_cpus=0)
    class Reader:
        def read(self):
            return 1

    with pytest.raises(RuntimeEnvSetupError) as raised:
        get(variable.options(runtime_env=environment).remote(NAME))
    assert message in str(raised.value)
    reader = Reader.options(runtime_env=environment).remote()
    with pytest.raises(RuntimeEnvSetupError) as raised:
        get(reader.read.remote())
    assert message in str(raised.value)
    assert get(variable.remote(NAME)) is None


def test_an_environment_may_name_the_paths_that_everybody_has(tmp_path):
    """As flwr does: what is imported from there stays everybody's."""
    place = write_module(tmp_path / "own", "own")
    paths = [place, str(tmp_path), *(path for path in sys.path if path)]
    task = import_it.options(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}})

    @ray.remote(num_cpus=0)
    def fail():
        raise ZeroDivisionError

    assert get([task.remote("module_of_a_runtime_env"), task.remote("module_of_a_runtime_env")]) == ["own", "own"]
    with pytest.raises(ZeroDivisionError):
        get(fail.options(runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}).remote())
    assert get(variable.remote("no_such_variable")) is None
    assert "module_of_a_runtime_env" not in sys.modules


def test_packages_that_are_installed(tmp_path):
    (tmp_path / "requirements.txt").write_text("# ours\nnumpy>=1.26  # arrays\n--no-cache-dir\n\npytest\n")

    @ray.remote(num_cpus=0)
    def asked():
        return ray.get_runtime_context().runtime_env["pip"]

    for pip, found in (
        (["numpy>=1.26", "pytest[dev]", 'winonly==3; sys_platform == "win32"'], None),
        ({"packages": ["numpy"], "pip_check": False}, ["numpy"]),
        (str(tmp_path / "requirements.txt"), ["numpy>=1.26", "pytest"]),
    ):
        assert get(asked.options(runtime_env={"pip": pip}).remote()) == (found or pip)


def test_a_directory_that_is_gone_when_the_task_begins(tmp_path):
    directory = tmp_path / "short-lived"
    directory.mkdir()
    task = here.options(runtime_env={"working_dir": str(directory)})
    directory.rmdir()
    with pytest.raises(RuntimeEnvSetupError, match="is not a directory"):
        get(task.remote())


# ---- Setup hooks -----------------------------------------------------------------------------------------------------

HOOK = "worker_process_setup_hook"
"""The key of runtime_env."""


def say_that_it_ran():
    os.environ[f"{NAME}_HOOK"] = os.environ[f"{NAME}_HOOK"] + "x" if f"{NAME}_HOOK" in os.environ else "x"


def fail_to_set_up():
    raise ValueError("no licence for this worker")


def test_a_setup_hook_runs_once_in_each_worker():
    mark = "captured"

    def hook():
        say_that_it_ran()
        os.environ[f"{NAME}_OF_HOOK"] = f"{mark} and {os.environ[NAME]}"

    told = variable.options(runtime_env={HOOK: hook, **with_variable("a")})
    names = [f"{NAME}_HOOK", f"{NAME}_OF_HOOK"]
    assert [get(told.remote(name)) for name in [*names, *names]] == ["x", "captured and a", "x", "captured and a"]
    assert get(variable.remote(names[0])) is None
    assert names[0] not in os.environ


def test_a_setup_hook_may_be_a_name(tmp_path):
    tmp_path.joinpath("hook_of_a_runtime_env.py").write_text(
        f"import os\n\ndef set_up():\n    os.environ['{NAME}_HOOK'] = 'by name'\n"
    )
    environment = {HOOK: "hook_of_a_runtime_env.set_up", "working_dir": str(tmp_path)}
    assert get(variable.options(runtime_env=environment).remote(f"{NAME}_HOOK")) == "by name"


def test_a_setup_hook_is_of_children_and_actors_too():
    @ray.remote(num_cpus=0)
    def parent():
        return get(variable.remote(f"{NAME}_HOOK"))

    @ray.remote(num_cpus=0, runtime_env={HOOK: say_that_it_ran})
    class Actor:
        def variable(self):
            return os.environ[f"{NAME}_HOOK"]

    assert get(parent.options(runtime_env={HOOK: say_that_it_ran}).remote()) == "x"
    assert get(Actor.remote().variable.remote()) == "x"


def test_setup_hooks_that_fail():
    failing = variable.options(runtime_env={HOOK: fail_to_set_up}, max_retries=0)
    with pytest.raises(RuntimeEnvSetupError, match=r"Failed to execute the setup hook method.*ValueError: no licence"):
        get(failing.remote())

    @ray.remote(num_cpus=0, runtime_env={HOOK: "no_such_module_of_a_hook.f"})
    class Actor:
        def ping(self):
            pass

    with pytest.raises(ActorDiedError, match="no_such_module_of_a_hook"):
        get(Actor.remote().ping.remote())
    lock = threading.Lock()
    with pytest.raises(RuntimeEnvSetupError, match=r"Failed to export the setup function\. dualray cannot pickle"):
        variable.options(runtime_env={HOOK: lambda: lock.locked()}).remote()
    with pytest.raises(ValueError, match="must be the name of a function with its module"):
        variable.options(runtime_env={HOOK: "set_up"})
    with pytest.raises(TypeError, match="must be a function without arguments"):
        variable.options(runtime_env={HOOK: 3})
    large = bytes(100_000)
    with pytest.raises(ValueError, match="but at most 65,536 bytes are allowed"):
        variable.options(runtime_env={HOOK: lambda: large})


# ---- max_calls -------------------------------------------------------------------------------------------------------


def test_a_worker_ends_after_max_calls():
    @ray.remote(max_calls=3)
    def process():
        return mark_of_process()

    marks = get([process.remote() for _ in range(12)])
    assert all(marks.count(mark) <= 3 for mark in marks)
    assert len(set(marks)) >= 4


def test_with_max_calls_nothing_is_lost():
    @ray.remote(max_calls=1)
    def keep():
        return [ray.put("kept by its worker")]

    boxes = get([keep.remote() for _ in range(4)])
    assert [get(box[0]) for box in boxes] == ["kept by its worker"] * 4


def test_max_calls_counts_failed_calls(tally: Tally):
    @ray.remote(max_calls=1, max_retries=0)
    def fail():
        tally.add(mark_of_process())
        raise ValueError("failed")

    for _ in range(3):
        with pytest.raises(ValueError, match="failed"):
            get(fail.remote())
    assert len(set(tally.notes)) == 3


# ---- retry_exceptions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("retried", "raised", "tries"),
    [
        ([ValueError], ValueError, 3),
        ([ValueError, KeyError], KeyError, 3),
        ([LookupError], KeyError, 3),
        ([ValueError], KeyError, 1),
        ([], ValueError, 1),
        (True, KeyError, 3),
    ],
)
def test_retry_exceptions_names_the_exceptions(tally: Tally, retried, raised, tries):
    @ray.remote(max_retries=2, retry_exceptions=retried)
    def fail():
        tally.add()
        raise raised("again")

    with pytest.raises(raised):
        get(fail.remote())
    assert tally.count == tries


def test_retry_exceptions_knows_the_users_own_types(tally: Tally):
    class Transient(Exception):
        pass

    @ray.remote(retry_exceptions=[Transient])
    def flaky():
        if tally.add() < 3:
            raise Transient
        return "at last"

    assert get(flaky.remote()) == "at last"


@pytest.mark.parametrize("retried", [[1], "ValueError", [ValueError("x")]])
def test_retry_exceptions_that_are_none(retried):
    with pytest.raises(TypeError, match="retry_exceptions"):
        variable.options(retry_exceptions=retried)
