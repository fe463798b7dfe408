"""The command `ray` that a program under the name `ray` finds on its PATH: real subprocesses, and a real head."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dualray.as_ray import COMMANDS, PYTHON_VARIABLE
from dualray.cli.rays.state import _new_file
from tests.structure import ROOT

NO_CLUSTER = "Did not find any active Ray processes."


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory for sessions that no other test looks at. Its name is short, for sockets lie in it."""
    directory = Path(tempfile.mkdtemp(prefix="rays-", dir="/tmp"))
    yield directory
    if list(directory.glob("dualray-*")):
        ray(directory, "stop")
    left = list(directory.glob("dualray-*"))
    shutil.rmtree(directory)
    assert not left


def environment(place: Path, **variables: str) -> dict[str, str]:
    without = {"DUALRAY_MODE", "RAY_ADDRESS", "DUALRAY_AS_RAY"}
    kept = {name: value for name, value in os.environ.items() if name not in without}
    return {**kept, "PYTHONPATH": str(ROOT), "TMPDIR": str(place), PYTHON_VARIABLE: sys.executable, **variables}


def ray(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The command with these words, as a program's subprocess."""
    command = [str(COMMANDS / "ray"), *words]
    return subprocess.run(command, env=environment(place, **variables), capture_output=True, text=True)


def run(place: Path, program: str, *options: str) -> str:
    """What a program prints that `dualray run --as-ray` runs; it must end without an error."""
    path = place / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "dualray", "run", "--as-ray", str(path), *options]
    made = subprocess.run(command, env=environment(place), cwd=place, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def address_of(started: subprocess.CompletedProcess[str]) -> str:
    """The address of the cluster, as Ray's tests read it."""
    assert started.returncode == 0, started.stderr
    return started.stdout.partition("--address='")[2].partition("'")[0]


def start(place: Path, *words: str) -> str:
    return address_of(ray(place, "start", "--head", "--port", "0", "--num-cpus", "2", *words))


def test_a_program_finds_the_command_with_the_name():
    asks = 'import shutil, sys; sys.stdout.write(f\'{shutil.which("ray")} {shutil.which("ls")}\')'
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {asks!r}])"
    plain = environment(Path("/tmp"))
    done = subprocess.run(
        [sys.executable, "-m", "dualray.as_ray", "-c", program], env=plain, capture_output=True, text=True
    )
    assert done.stdout == f"{COMMANDS / 'ray'} {shutil.which('ls')}", done.stderr


def test_the_path_does_not_grow_from_process_to_process():
    program = (
        "import dualray.as_ray as name, os; name.install(); name.install(); "
        "print(os.environ['PATH'].split(os.pathsep).count(str(name.COMMANDS)))"
    )
    plain = environment(Path("/tmp"))
    plain["PATH"] = f"{COMMANDS}:{plain['PATH']}"
    done = subprocess.run([sys.executable, "-c", program], env=plain, capture_output=True, text=True)
    assert done.stdout.strip() == "1", done.stderr


def test_pytest_gives_tests_the_command_and_takes_it_back(place):
    (place / "test_it.py").write_text(
        "import subprocess\n\n\ndef test_version():\n"
        "    assert subprocess.check_output(['ray', '--version'], text=True).startswith('ray, version 2.')\n"
    )
    (place / "around.py").write_text(
        "import os, pytest\nbefore = dict(os.environ)\n"
        "code = pytest.main(['-q', '-p', 'no:cacheprovider', '--dualray-as-ray', 'test_it.py'])\n"
        "changed = {n for n in {*before, *os.environ} if before.get(n) != os.environ.get(n)}\n"
        "print('code', int(code), 'changed', changed & {'PATH', 'DUALRAY_AS_RAY', 'DUALRAY_AS_RAY_PYTHON'})\n"
    )
    done = subprocess.run(
        [sys.executable, "around.py"], cwd=place, env=environment(place), capture_output=True, text=True
    )
    assert "code 0 changed set()" in done.stdout, done.stdout + done.stderr


def test_without_a_cluster(place):
    version = ray(place, "--version")
    assert (version.returncode, version.stdout) == (0, "ray, version 2.60.0\n")
    status = ray(place, "status")
    assert status.returncode == 1
    assert "Could not find any running Ray instance" in status.stderr
    assert ray(place, "health-check").returncode == 1
    stopped = ray(place, "stop", "--force")
    assert (stopped.returncode, stopped.stdout.strip()) == (0, NO_CLUSTER)
    joins = ray(place, "start", "--address", "auto")
    assert joins.returncode == 1
    assert "has started no cluster" in joins.stderr


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("start",), 1, "`--address` is a required flag unless starting a head node with `--head`."),
        (("start", "--address", "127.0.0.1:1", "--port", "2"), 1, "should only be specified when starting head node"),
        (("start", "--head", "--port", "x"), 2, "'x' is not a valid integer"),
        (("start", "--head", "--resources", "{"), 2, "--resources '{' must be JSON"),
        (("start", "--head", "--system-config", "[]"), 2, "--system-config '[]' must be a JSON object"),
        (("list", "cats"), 2, "'cats' is not a table; choose one of actors"),
        (("stauts",), 2, "there is no command 'stauts'"),
        (("job", "submit", "--", "python", "x.py", "--help"), 2, "dualray has no server for jobs"),
        (("get_head_ip", "cluster.yaml"), 2, "dualray has no cluster launcher: start nodes with `ray start`"),
        (("kill-actor", "--name", "a"), 2, "call ray.kill(ray.get_actor(NAME)) in a program"),
    ],
)
def test_what_it_refuses(place, words, code, says):
    done = ray(place, *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert says in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_cluster_from_its_start_to_its_end(place):
    ignored = ("--include-dashboard=true", "--min-worker-port=0", "--disable-usage-stats", "--temp-dir", "/tmp/t")
    started = ray(place, "start", "--head", "--port", "0", "--num-cpus", "2", *ignored, "--labels", "zone=a")
    address = address_of(started)
    assert "Ray runtime started." in started.stdout
    assert started.stderr.splitlines() == [
        "dualray: these options have no effect in dualray's `ray start`: --include-dashboard, --temp-dir"
    ]
    joins = ray(place, "start", f"--address={address}", "--num-cpus", "1", "--resources", '{"disk": 3}')
    assert joins.returncode == 0, joins.stderr
    nodes = json.loads(ray(place, "list", "nodes", "--format", "json").stdout)
    assert [(row["node_id"], row["is_head_node"], row["labels"]) for row in nodes] == [
        ("node-0", True, {"zone": "a"}),
        ("node-1", False, {}),
    ]
    driver = """\
import subprocess

import ray

ray.init(address="auto")
assert ray.cluster_resources()["CPU"] == 3


@ray.remote(num_cpus=2)
class Holder:
    def here(self):
        return True


@ray.remote
def never():
    return True


holder = Holder.options(name="holder", resources={"node:127.0.0.1": 0.001}).remote()
assert ray.get(holder.here.remote())
waits = [never.options(num_cpus=2).remote() for _ in range(2)]
group = ray.util.placement_group([{"CPU": 2}])
for words in ("status", "list actors", "summary tasks", "timeline", "get actors " + holder._actor_id.hex()):
    print(subprocess.check_output(["ray", *words.split()], text=True))
"""
    said = run(place, driver)
    assert " 2.0/3.0 CPU" in said
    assert " 0.0/3.0 disk" in said
    assert " {'CPU': 2.0}: 2+ pending tasks/actors" in said
    assert " {'CPU': 2.0} * 1 (PACK): 1+ pending placement groups" in said
    assert "Total: 1" in said
    assert "ACTOR_ID" in said
    assert "Table (group by func_name):" in said
    assert "class_name: Holder" in said
    (trace,) = place.glob("ray-timeline-*.json")
    assert json.loads(trace.read_text())["traceEvents"]
    assert ray(place, "status", RAY_ADDRESS=address).returncode == 0
    assert ray(place, "status", "--address", "127.0.0.1:1").returncode == 1
    assert ray(place, "list", "actors", "--filter", "state=ALIVE").stdout == "No resource in the cluster\n"
    assert ray(place, "stop").stdout.strip() == "Stopped all 2 Ray processes."
    assert ray(place, "stop").stdout.strip() == NO_CLUSTER


def test_a_program_joins_what_its_own_commands_start(place):
    program = """\
import subprocess

import ray

ray.init(num_cpus=1)  # there is nothing to join yet
ray.shutdown()
subprocess.check_output(["ray", "start", "--head", "--port", "0", "--num-cpus", "7"])
for address in (None, "auto"):
    ray.init(address=address)
    assert ray.cluster_resources()["CPU"] == 7
    ray.shutdown()
assert ray.get(ray.remote(lambda: 5).remote()) == 5  # before any init
assert ray.cluster_resources()["CPU"] == 7
ray.shutdown()
try:
    ray.init(num_cpus=2)
except ValueError as error:
    assert "num_cpus and num_gpus must not be provided" in str(error), error
else:
    raise AssertionError("whoever joins a cluster says no CPUs")
ray.init(address="local", num_cpus=2)
assert ray.cluster_resources()["CPU"] == 2
own = subprocess.run(["ray", "status"], capture_output=True, text=True)
assert " 0.0/2.0 CPU" in own.stdout, own
print(subprocess.check_output(["ray", "stop", "--force"], text=True), flush=True)
assert ray.get(ray.remote(lambda: 6).remote()) == 6  # its own cluster is nobody else's to stop
print(subprocess.check_output(["ray", "stop"], text=True))
"""
    assert run(place, program).split("\n\n") == ["Stopped all 1 Ray processes.", NO_CLUSTER]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_of_several_clusters_a_program_joins_the_last(place):
    first = start(place)
    second = start(place)
    program = "import ray; print(ray.init(address={}).address_info['gcs_address'])"
    assert run(place, program.format("'auto'")) == second
    assert run(place, program.format("None")) == second
    assert run(place, program.format(repr(first))) == first
    named = f"import os; os.environ['RAY_ADDRESS'] = {first!r}; "
    assert run(place, named + program.format("'auto'")) == first
    assert ray(place, "stop", "--address", second).stdout.strip() == "Stopped all 1 Ray processes."
    assert run(place, program.format("None")) == first


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_stops_what_it_has_started_and_nothing_else(place):
    dualray = [sys.executable, "-m", "dualray"]
    begun = subprocess.run(
        [*dualray, "start", "--head", "--port", "0"], env=environment(place), capture_output=True, text=True
    )
    assert begun.returncode == 0, begun.stderr
    address = begun.stdout.partition("of the cluster at ")[2].partition(" ")[0]
    assert ray(place, "stop").stdout.strip() == NO_CLUSTER
    program = "import ray; print(ray.init(num_cpus=3).address_info['gcs_address'])"
    assert address not in run(place, program)  # nor does a program join it without an address
    assert ray(place, "stop", "--address", address).stdout.strip() == "Stopped all 1 Ray processes."
    start(place)
    stopped = subprocess.run([*dualray, "stop"], env=environment(place), capture_output=True, text=True)
    assert stopped.stdout.startswith("stopped node-0 of the cluster at ")


def blocked(place: Path, *words: str) -> tuple[subprocess.Popen[str], str]:
    """A command in the foreground, once it says that it blocks, and what it has said."""
    process = subprocess.Popen(
        [str(COMMANDS / "ray"), "start", "--head", "--block", "--port", "0", *words],
        env=environment(place),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if "block forever" in line:
            break
    return process, "".join(lines)


def daemon_of(process: subprocess.Popen[str]) -> psutil.Process:
    (daemon,) = psutil.Process(process.pid).children()
    return daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_node_in_the_foreground_ends_with_the_command(place, number):
    process, said = blocked(place, "--num-cpus", "1999")
    assert "Ray runtime started." in said
    assert run(place, "import ray; ray.init(); print(ray.cluster_resources()['CPU'])") == "1999.0"
    daemon = daemon_of(process)
    process.send_signal(number)
    process.communicate()
    assert process.returncode == (15 if number == signal.SIGTERM else 130)
    assert not daemon.is_running()
    assert ray(place, "stop").stdout.strip() == NO_CLUSTER


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_foreground_says_how_the_node_ended(place):
    process, _ = blocked(place)
    assert ray(place, "stop").stdout.strip() == "Stopped all 1 Ray processes."
    process.communicate()
    assert process.returncode == 0
    process, _ = blocked(place)
    daemon = daemon_of(process)
    daemon.kill()
    process.communicate()
    assert process.returncode == 1


def test_a_killed_command_takes_its_node_along(place):
    process, _ = blocked(place)
    daemon = daemon_of(process)
    process.kill()
    process.communicate()
    daemon.wait(60)


def test_in_a_simulation_the_command_says_why_it_cannot_help(place):
    start(place)
    program = """\
import subprocess

import ray

ray.init()
for words in ("--version", "stop", "status", "list nodes", "start --head"):
    done = subprocess.run(["ray", *words.split()], capture_output=True, text=True)
    print(words, done.returncode, done.stdout.strip() or done.stderr.strip().partition(", because ")[2][:54])
"""
    why = "the program that starts it runs in a simulation, whose"
    assert run(place, program, "--mode", "sim", "--quiet").splitlines() == [
        "--version 0 ray, version 2.60.0",
        f"stop 0 {NO_CLUSTER}",
        f"status 2 {why}",
        f"list nodes 2 {why}",
        f"start --head 2 {why}",
    ]
    assert ray(place, "status").returncode == 0  # the simulation has stopped nothing
    assert "Start a node" in ray(place, "start", "--help", DUALRAY_MODE="sim").stdout


def test_the_timeline_is_a_new_file(tmp_path):
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "link.json").symlink_to(tmp_path / "precious")
    os.mkfifo(tmp_path / "fifo.json")
    for name in ("link.json", "fifo.json"):
        with pytest.raises(FileExistsError):
            _new_file(tmp_path / name)
    with _new_file(tmp_path / "new.json") as file:
        Path(f"/dev/fd/{file.fileno()}").write_text("[]")
    assert (tmp_path / "new.json").read_text() == "[]"
    assert (tmp_path / "precious").read_text() == "precious"
