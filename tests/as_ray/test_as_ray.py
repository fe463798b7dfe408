"""The name `ray`: what programs see that say `import ray`, however they have got it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dualray.exceptions

ROOT = Path(__file__).parents[2]

PROGRAM = """\
import importlib.util, inspect, pickle, pkgutil, subprocess, sys

import ray
import ray.util.state
from ray.exceptions import RayTaskError
from ray.util import placement_group
from ray.util.placement_group import PlacementGroup, placement_group as by_module
from ray._private.test_utils import SignalActor, wait_for_condition
from ray.util.queue import Queue

assert str(ray).startswith("<module 'ray'"), ray
assert ray.__version__ == "2.60.0"
assert placement_group is by_module and ray.util.placement_group is by_module
assert inspect.getfile(ray.util.queue).endswith("ray/util/queue.py")
assert {"util", "actor", "exceptions"} <= {each.name for each in pkgutil.iter_modules(ray.__path__)}
assert importlib.util.find_spec("ray.util.queue").name == "ray.util.queue"
assert importlib.util.find_spec("ray.serve") is None
assert type(ray.ObjectRef[int]) is type(list[int]) or ray.ObjectRef[int]

for module in ("ray.serve", "ray.core", "ray.util.spark", "ray._private.gcs_utils"):
    try:
        importlib.import_module(module)
    except ImportError as error:
        assert str(error).startswith(f"{module} is not in dualray"), error
        assert "docs/ray_names.md" in str(error)
    else:
        raise AssertionError(module)
try:
    ray.tune
except AttributeError as error:
    assert "dualray has no library for hyperparameter tuning" in str(error)
else:
    raise AssertionError("ray.tune")
assert not hasattr(ray.util.state, "nonsense")
assert ray.logger.name == "ray" and ray.cloudpickle.pickle is pickle
assert ray.worker.global_worker is ray._private.worker.global_worker
assert ray.ray_constants.DEFAULT_PORT == 6379 and not hasattr(ray.state, "nonsense")


@ray.remote
class Counter:
    def __init__(self):
        self.n = 0

    def add(self):
        import ray.util

        self.n += 1
        return self.n, ray.get_runtime_context().get_actor_id(), ray.__name__


@ray.remote
def fail():
    raise ValueError("no")


ref = ray.put(3)  # no init: the first verb starts a cluster
assert isinstance(ref, ray.ObjectRef) and ray.is_initialized()
counter = Counter.remote()
assert ray.get(counter.add.remote())[::2] == (1, "ray")
assert isinstance(counter, ray.actor.ActorHandle)
try:
    ray.get(fail.remote())
except ValueError as error:
    assert isinstance(error, RayTaskError)
queue = Queue()
queue.put("x")
assert queue.get() == "x"
signal = SignalActor.remote()
waiting = signal.wait.remote()
wait_for_condition(lambda: ray.get(signal.cur_num_waiters.remote()) == 1)
ray.get([signal.send.remote(), waiting])
here = pickle.dumps([RayTaskError, ray.util.queue.Queue, ray.JobID.from_int(7), PlacementGroup, ray.remote])
assert b"\\x03ray" not in here and b"ray.util" not in here.replace(b"dualray", b""), here
print("ended well", *sys.argv[1:])
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, in an environment that has no name of ours."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_a_program_that_imports_ray(mode, tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = (sys.executable, "-m", "dualray.as_ray", "program.py", "--lr", "3")
    finished = run(*command, cwd=tmp_path, DUALRAY_MODE=mode)
    assert (finished.returncode, finished.stdout) == (0, "ended well --lr 3\n"), finished.stderr


def test_the_command_runs_scripts_and_modules(tmp_path):
    (tmp_path / "program.py").write_text("import ray, sys\nprint(ray.init().ray_version, __name__, sys.argv[1:])\n")
    dualray = (sys.executable, "-m", "dualray", "run", "--mode", "sim", "--as-ray")
    script = run(*dualray, "program.py", "-m", "3", cwd=tmp_path)
    assert script.stdout == "2.60.0 __main__ ['-m', '3']\n", script.stderr
    module = run(*dualray, "-m", "program", "--batch", "4", cwd=tmp_path)
    assert module.stdout == "2.60.0 __main__ ['--batch', '4']\n", module.stderr
    assert "-m needs the name of a module" in run(*dualray, "-m", cwd=tmp_path).stderr
    (tmp_path / "plain.py").write_text(
        "from importlib.util import find_spec\nprint('as_ray' in str(getattr(find_spec('ray'), 'origin', None)))\n"
    )
    plain = run(sys.executable, "-m", "dualray", "run", "plain.py", cwd=tmp_path)
    assert plain.stdout == "False\n", plain.stderr


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("from ray import tune", "dualray has no library for hyperparameter tuning"),
        ("from ray import get, serve", "dualray has no library for serving"),
        ("from ray.util import sgd", "Ray has removed ray.util.sgd; use dualray.train"),
        ("from ray.air import session", "ray.air is private to Ray's libraries"),
        ("from ray.dag import nonsense", "docs/ray_names.md lists the names of Ray that dualray has"),
    ],
)
def test_an_import_of_what_is_left_out_says_why(line, why, tmp_path):
    program = f"try:\n    {line}\nexcept ImportError as error:\n    print(error)\n"
    said = run(sys.executable, "-m", "dualray.as_ray", "-c", program, cwd=tmp_path)
    assert "is not in dualray" in said.stdout, said.stderr
    assert why in said.stdout


def test_metadata_knows_ray_where_no_ray_is_installed(tmp_path):
    program = (
        "from importlib import metadata\n"
        "print(metadata.version('ray'), metadata.metadata('ray')['name'])\n"
        "print(metadata.packages_distributions()['ray'][0])\n"
        "print([found.metadata['name'] for found in metadata.distributions(path=['.'])])\n"
        "print(metadata.version('dualray') != metadata.version('ray'))\n"
    )
    said = run(sys.executable, "-c", program, cwd=tmp_path, DUALRAY_AS_RAY="1")
    assert said.stdout == "2.60.0 ray\nray\n[]\nTrue\n", said.stderr


def test_a_program_that_does_not_ask_loads_nothing_of_it(tmp_path):
    program = (
        "import sys, dualray\ndualray.init(mode='sim')\ndualray.get(dualray.put(1))\nimport dualray.util\n"
        "print([name for name in sys.modules if 'as_ray' in name or name == 'ray'])"
    )
    assert run(sys.executable, "-c", program, cwd=tmp_path).stdout == "[]\n"


def test_the_real_ray_is_not_replaced_once_it_is_imported(tmp_path):
    package = tmp_path / "ray"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "library.py").write_text("import ray\n")
    program = "import library, dualray.as_ray\ndualray.as_ray.install()"
    said = run(sys.executable, "-c", program, cwd=tmp_path).stderr
    assert f"Ray itself is imported already, from {package / '__init__.py'}, by module library" in said
    twice = "import dualray.as_ray as it\nit.install()\nit.install()\nimport ray\nprint(ray.__version__)"
    assert run(sys.executable, "-c", twice, cwd=tmp_path).stdout == "2.60.0\n"


def test_children_inherit_the_name_and_its_line_loads_nothing_unasked(tmp_path):
    line = (ROOT / "dualray_as_ray.pth").read_text()
    assert line.startswith("import ")
    assert line.count("\n") == 1
    child = "import os, subprocess, sys\nsys.exit(subprocess.call([sys.executable, '-c', sys.argv[1]]))"
    program = f"{line}import ray\nprint(ray.__version__)"
    asked = run(sys.executable, "-c", child, program, cwd=tmp_path, DUALRAY_AS_RAY="1")
    assert asked.stdout == "2.60.0\n", asked.stderr
    loaded = f"import os, sys\nbefore = set(sys.modules)\nexec({line!r})\nprint(sorted(set(sys.modules) - before))"
    assert run(sys.executable, "-c", loaded, cwd=tmp_path).stdout == "[]\n"


def test_an_import_of_ray_loads_no_library_and_neither_mode(tmp_path):
    """Each worker whose functions import it would load them."""
    heavy = "numpy", "pandas", "psutil", "pyarrow", "pydantic", "redis", "simpy", "yaml", "dualray.real", "dualray.sim"
    program = f"import ray, sys\nray.remote, ray.init\nprint([name for name in {heavy} if name in sys.modules])"
    asked = run(sys.executable, "-c", program, cwd=tmp_path, DUALRAY_AS_RAY="1")
    assert asked.stdout == "[]\n", asked.stderr


def test_errors_of_the_state_api_have_rays_name(tmp_path):
    program = (
        "import dualray\nfrom ray.util.state.exception import RayStateApiException\n"
        "print(issubclass(dualray.exceptions.DualrayError, RayStateApiException))"
    )
    asked = run(sys.executable, "-c", program, cwd=tmp_path, DUALRAY_AS_RAY="1")
    assert asked.stdout == "True\n", asked.stderr


SUITE = {
    "pytest.ini": "[pytest]\nfilterwarnings = error\n",
    "conftest.py": "import ray\nimport pytest\n\n\n@pytest.fixture\ndef cluster():\n    yield ray.init(num_cpus=2)\n"
    "    ray.shutdown()\n",
    "test_suite.py": "import ray\n\n\n@ray.remote\ndef where():\n"
    "    return ray.get_runtime_context().get_node_id()\n\n\n"
    "def test_nodes(cluster):\n    assert len(ray.nodes()) == 3\n\n\n"
    "def test_tasks(cluster):\n    assert ray.get(where.remote()).startswith('node-')\n",
}


def test_a_suite_runs_under_pytest(tmp_path):
    for name, text in SUITE.items():
        (tmp_path / name).write_text(text)
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path)
    options = ("--dualray-as-ray", "--dualray-mode", "sim", "--dualray-nodes", "3")
    assert "2 passed" in run(*pytest_, *options, "-n", "1", cwd=tmp_path).stdout
    assert "2 passed" in run(*pytest_, *options[1:], cwd=tmp_path, DUALRAY_AS_RAY="1").stdout
    wrong = run(*pytest_, "--dualray-as-ray", "--dualray-mode", "simulated", cwd=tmp_path)
    assert "--dualray-mode='simulated' must be real or sim" in wrong.stderr


REQUESTS = """\
import ray
from ray.autoscaler.sdk import request_resources

ray.init()
request_resources(num_cpus=2, bundles=[{"GPU": 1, "CPU": 4}])
request_resources()
try:
    ray.autoscaler.sdk.teardown_cluster
except AttributeError as error:
    print(error)
try:
    import ray.autoscaler.v2
except ModuleNotFoundError as error:
    print(error)
"""


def test_a_program_may_request_resources_where_no_node_is_launched(tmp_path):
    (tmp_path / "program.py").write_text(REQUESTS)
    finished = run(sys.executable, "-m", "dualray.as_ray", "program.py", cwd=tmp_path, DUALRAY_MODE="sim")
    assert finished.returncode == 0, finished.stderr
    first, second = finished.stdout.splitlines()
    assert "ray.autoscaler.sdk.teardown_cluster is not in dualray" in first
    assert "dualray has only request_resources" in first
    assert "ray.autoscaler.v2 is not in dualray" in second


def test_an_error_under_the_name_is_dualrays_own():
    from dualray.as_ray import AbsentModuleError, RayIsImportedError

    assert issubclass(AbsentModuleError, ModuleNotFoundError)
    assert issubclass(RayIsImportedError, ImportError)
    assert dualray.exceptions.RayError is dualray.exceptions.DualrayError


OF_THE_GUIDE = """\
import ray
from ray._private.internal_api import free, memory_summary
from ray._raylet import ObjectRefGenerator

@ray.remote
def items():
    yield 1

generator = items.remote()
assert isinstance(generator, ObjectRefGenerator)
ref = ray.put(b"x" * 1000)
words = memory_summary(units="KB")
assert ref.hex() in words and "1.0" in words.splitlines()[-2], words
assert ref.hex() not in memory_summary(stats_only=True)
large = ray.put(bytes(11 << 20))
assert "Plasma memory usage 11 MiB, 1 objects, " in memory_summary(stats_only=True)
free([ref])
assert ray.get(ref) == b"x" * 1000
try:
    memory_summary(units="bits")
except ValueError as error:
    print(error)
try:
    from ray._raylet import CoreWorker
except ImportError as error:
    print("CoreWorker" in str(error))
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_private_names_that_rays_guide_uses(mode, tmp_path):
    (tmp_path / "program.py").write_text(OF_THE_GUIDE)
    finished = run(sys.executable, "-m", "dualray.as_ray", "program.py", cwd=tmp_path, DUALRAY_MODE=mode)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "units='bits' must be one of B, KB, MB, GB\nTrue\n"
    assert "free() has no effect" in finished.stderr


AT_EXIT = """\
import atexit
import sys

import ray

atexit.register(lambda: print("first", ray.get(tally.add.remote())))
ray.init(num_cpus=1)


@ray.remote
class Tally:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n


tally = Tally.remote()


@atexit.register
def last():
    print("last", ray.get(tally.add.remote()))


atexit.register(lambda: 1 / 0)
atexit.register(print, "an argument")
atexit.unregister(atexit.register(lambda: print("taken back")))
print("ends")
sys.exit(3)
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_functions_of_atexit_are_called_before_the_cluster_ends(mode, tmp_path):
    (tmp_path / "program.py").write_text(AT_EXIT)
    finished = run(sys.executable, "-m", "dualray.as_ray", "program.py", cwd=tmp_path, DUALRAY_MODE=mode)
    assert finished.stdout == "ends\nan argument\nlast 1\nfirst 2\n", finished.stderr
    assert finished.returncode == 3
    assert finished.stderr.count("Exception ignored in atexit callback") == 1
    assert "SystemExit" not in finished.stderr


ITS_FILE = """\
import os
import sys

import ray


@ray.remote
def where():
    return __file__


os.chdir("/")
print(__file__, ray.get(where.remote()), sys.argv[0], sys.modules["__main__"].__loader__.name)
"""


@pytest.mark.parametrize("mode", ["real", "sim"])
@pytest.mark.parametrize(
    "command", [["dualray.as_ray"], ["dualray", "run", "--quiet", "--as-ray"]], ids=["as_ray", "run"]
)
def test_the_file_of_a_script_is_absolute_as_in_python(command, mode, tmp_path):
    (tmp_path / "program.py").write_text(ITS_FILE)
    finished = run(sys.executable, "-m", *command, "program.py", cwd=tmp_path, DUALRAY_MODE=mode)
    # Functions travel with their path: the virtual time of a simulation must not depend on the directory.
    path = str(tmp_path / "program.py") if mode == "real" else "program.py"
    assert finished.stdout.split() == [path, path, "program.py", "__main__"], finished.stderr
