"""What leads out of a simulation: refused in tasks by name, let go and noted in the driver."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import socketserver
import subprocess
import sys
import time
from typing import Any

import pytest

import dualray
from dualray.exceptions import TaskError


def on_socket(method, *args):
    with socket.socket() as made:
        return getattr(made, method)(*args)


def serve():
    with socketserver.TCPServer(("", 0), socketserver.BaseRequestHandler) as server:
        assert "of node-" in repr(server.socket)
        server.serve_forever()


CALLS = {
    "socket.socket": lambda: socket.socket(socket.AF_UNIX),
    "socket.connect": lambda: on_socket("connect", ("127.0.0.1", 1)),
    "socket.connect_ex": lambda: on_socket("connect_ex", ("127.0.0.1", 1)),
    "socket.accept": lambda: on_socket("accept"),
    "socket.fileno": serve,
    "socket.send": lambda: on_socket("send", b"words"),
    "socket.create_connection": lambda: socket.create_connection(("127.0.0.1", 1)),
    "socket.getaddrinfo": lambda: socket.getaddrinfo("localhost", 80),
    "subprocess.Popen": lambda: subprocess.run([sys.executable, "-c", ""], check=True),
    "os.system": lambda: os.system("true"),
    "os.fork": lambda: os.fork(),
    "os.posix_spawn": lambda: os.posix_spawn("/bin/true", ["true"], {}),
    "os.execv": lambda: os.execv("/bin/true", ["true"]),
    "multiprocessing.Process.start": lambda: multiprocessing.Process(target=print).start(),
}


MACHINE_PIDS_MAX = 4_194_304
FORK = dualray.remote(max_retries=0)(os.fork)
"""Made before there is a simulation, it is the builtin itself."""


def simulate(**settings):
    runtime: Any = dualray.init(mode="sim", nodes=2, **settings)
    return runtime


@pytest.fixture(autouse=True)
def _ends():
    yield
    dualray.shutdown()


@pytest.mark.parametrize("name", CALLS)
def test_a_task_is_refused_by_the_name_of_the_call(name):
    runtime = simulate()
    call = dualray.remote(max_retries=0)(CALLS[name])
    with pytest.raises(
        PermissionError,
        match=rf"{name}\(\) uses something outside the simulation.*node-.*sim_unsafe=\"allow\" in its options",
    ):
        dualray.get(call.remote())
    assert runtime.cluster.witnessed == {}


def free_port():
    """As libraries find one."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("", 0))
        bound.listen(1)
        return bound.getsockname()


def own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("8.8.8.8", 80))
        return asking.getsockname()[0], asking.getpeername(), dualray.util.get_node_ip_address()


def test_tasks_find_free_ports_and_the_address_of_their_node():
    simulate(num_cpus=1)

    @dualray.remote(scheduling_strategy="SPREAD")
    def find():
        return socket.gethostname(), free_port()

    found = dualray.get([find.remote() for _ in range(4)])
    nodes = sorted({node for node, _ in found})
    assert nodes == ["node-0", "node-1"]
    for node in nodes:
        names = sorted(name for where, name in found if where == node)
        assert names == [("0.0.0.0", 32768 + number) for number in range(len(names))]
    own, peer, told = dualray.get(dualray.remote(own_address).remote())
    assert own == told and own.startswith("10.0.0.") and peer == ("8.8.8.8", 80)


def test_a_port_is_one_sockets_until_it_is_closed():
    simulate()

    @dualray.remote
    def binds():
        first, second = socket.socket(), socket.socket(socket.AF_INET6)
        first.bind(("localhost", 5000))
        with pytest.raises(OSError, match="Address already in use"):
            second.bind(("::", 5000))
        with pytest.raises(OSError, match="Invalid argument"):
            first.bind(("", 5001))
        names = [first.getsockname()]
        first.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            first.getsockname()
        second.bind((socket.gethostname(), 5000))
        names.append(second.getsockname())
        with pytest.raises(OSError, match="not connected"):
            second.getpeername()
        second.close()
        return names

    assert dualray.get(binds.remote()) == [("127.0.0.1", 5000), ("::ffff:10.0.0.1", 5000, 0, 0)]


def test_what_a_socket_of_a_child_class_or_of_a_descriptor_is_is_not_known():
    simulate()

    class Own(socket.socket):
        pass

    for make in (lambda: Own(), lambda: socket.socket(fileno=0), lambda: socket.socket(type=socket.SOCK_RAW)):
        with pytest.raises(PermissionError, match=r"socket.socket\(\) uses something outside"):
            dualray.get(dualray.remote(max_retries=0)(make).remote())


class Caller:
    def run(self):
        return subprocess.check_output(["echo", "run"], text=True)

    async def run_in_a_coroutine(self):
        return self.run()


@pytest.mark.parametrize("method", ["run", "run_in_a_coroutine"])
def test_an_actor_is_refused_and_lives_on(method):
    simulate()
    caller: Any = dualray.remote(Caller).remote()
    for _ in range(2):
        with pytest.raises(TaskError, match=r"subprocess.Popen\(\) uses something outside"):
            dualray.get(getattr(caller, method).remote())


def test_who_allows_it_gets_it_and_is_told():
    runtime = simulate(sim_unsafe="allow")

    @dualray.remote
    def pair():
        first, second = socket.socketpair()
        with first, second:
            first.sendall(b"words")
            return second.recv(5), subprocess.check_output(["echo", "run"], text=True)

    assert dualray.get(pair.remote()) == (b"words", "run\n")
    assert {"socket.socket", "subprocess.Popen"} <= set(runtime.cluster.witnessed)
    assert runtime.cluster.witnessed["socket.socket"].startswith("socket.socket() was called on node-")


def call_out():
    return subprocess.check_output(["echo", "run"], text=True)


def test_a_task_says_it_itself():
    simulate()
    allowed = dualray.remote(sim_unsafe="allow")(call_out)
    assert dualray.get([allowed.remote(), allowed.remote()]) == ["run\n"] * 2
    refused = dualray.remote(call_out)
    with pytest.raises(PermissionError, match=r'sim_unsafe="allow" in its options'):
        dualray.get(refused.remote())
    assert dualray.get(refused.options(sim_unsafe="allow").remote()) == "run\n"


def test_so_does_one_that_came_by_value():
    simulate()

    @dualray.remote(sim_unsafe="allow")
    def nested():
        return subprocess.check_output(["echo", "run"], text=True)

    assert dualray.get([nested.remote(), nested.remote()]) == ["run\n"] * 2


def test_a_task_refuses_what_the_simulation_allows():
    simulate(sim_unsafe="allow")
    assert dualray.get(dualray.remote(call_out).remote()) == "run\n"
    with pytest.raises(PermissionError):
        dualray.get(dualray.remote(sim_unsafe="refuse")(call_out).remote())


@pytest.mark.parametrize("method", ["run", "run_in_a_coroutine"])
def test_an_actor_says_it_for_life(method):
    simulate()
    caller: Any = dualray.remote(sim_unsafe="allow")(Caller).remote()
    for _ in range(2):
        assert dualray.get(getattr(caller, method).remote()) == "run\n"


@pytest.mark.parametrize("options", [{"max_retries": 0}, {"max_restarts": 0}])
def test_an_option_that_is_neither_is_refused(options):
    made = call_out if "max_retries" in options else Caller
    with pytest.raises(ValueError, match="sim_unsafe='maybe' must be 'allow' or 'refuse'"):
        dualray.remote(sim_unsafe="maybe", **options)(made)


def test_a_builtin_that_leads_out_is_refused_as_a_task():
    simulate()
    with pytest.raises(PermissionError, match=r"os.fork\(\) uses something outside the simulation"):
        dualray.get(FORK.remote())


def test_the_driver_is_let_go_and_it_is_noted():
    runtime = simulate()
    time.sleep(1.5)
    assert subprocess.check_output(["echo", "run"], text=True) == "run\n"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        with socket.create_connection(listening.getsockname()):
            pass
    [words] = [words for call, words in runtime.cluster.witnessed.items() if call == "subprocess.Popen"]
    assert words == f"subprocess.Popen() was called on node-0 at {runtime.now_s:.6f} s of virtual time"
    assert "socket.create_connection" in runtime.cluster.witnessed


def test_a_module_may_look_at_its_machine_while_it_is_imported(tmp_path, monkeypatch):
    (tmp_path / "looks_at_its_machine.py").write_text(
        "import subprocess\nfound = subprocess.check_output(['echo', 'found'], text=True)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runtime = simulate()

    @dualray.remote
    def imports():
        return importlib.import_module("looks_at_its_machine").found

    assert dualray.get(imports.remote()) == "found\n"
    assert runtime.cluster.witnessed == {}


def test_afterwards_everything_is_as_it_was():
    before = socket.socket.__init__, subprocess.Popen.__init__, os.system
    simulate()
    dualray.shutdown()
    assert (socket.socket.__init__, subprocess.Popen.__init__, os.system) == before
    simulate(sim_unsafe="allow")
    dualray.shutdown()
    simulate()
    with pytest.raises(PermissionError):
        dualray.get(dualray.remote(os.system).remote("true"))


def test_a_setting_that_is_neither_is_refused():
    with pytest.raises(ValueError, match="sim_unsafe='maybe' must be 'refuse' or 'allow'"):
        simulate(sim_unsafe="maybe")


KEPT: list[Any] = [dualray.remote(function) for function in (time.sleep, os.getpid, os.listdir)]


def test_builtins_that_were_kept_are_the_simulation_s(tmp_path):
    sleep, getpid, listdir = KEPT
    runtime = simulate()
    assert dualray.get(sleep.remote(5)) is None
    assert 5 <= runtime.now_s < 5.1
    assert dualray.get(getpid.remote()) > MACHINE_PIDS_MAX
    for number in range(9, 0, -1):
        (tmp_path / str(number)).touch()
    assert dualray.get(listdir.remote(str(tmp_path))) == [str(number) for number in range(1, 10)]
