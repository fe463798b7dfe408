"""Machines that are network namespaces, joined by a bridge, each with an address and a temporary directory of its own.

Needs `ip` and the right to make namespaces (CAP_SYS_ADMIN and CAP_NET_ADMIN: root in a container with both).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SECRET = "a secret that only these namespaces share"


def ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True, timeout=20)


def why_not() -> str:
    """Why there are no namespaces here; empty when there are."""
    if shutil.which("ip") is None:
        return "there is no `ip` (package iproute2) on this machine"
    name = f"drtry{os.getpid()}"
    try:
        ip("netns", "add", name)
        try:
            ip("-n", name, "link", "add", "bridge0", "type", "bridge")
        finally:
            ip("netns", "del", name)
    except subprocess.CalledProcessError as error:
        return f"`{' '.join(error.cmd)}` says: {error.stderr.decode().strip()}"
    return ""


class Machine:
    """An address, and a temporary directory of its own; here the process's own network, at a loopback address."""

    def __init__(self, address: str, directory: Path, limits: Mapping[str, Any]) -> None:
        self.address = address
        self.directory = directory
        self.limits = limits
        directory.mkdir()

    def command(self, *args: str) -> list[str]:
        """The command line that runs Python there."""
        return [sys.executable, *args]

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "TMPDIR": str(self.directory),
            "DUALRAY_SECRET": SECRET,
            "DUALRAY_LIMITS": json.dumps(dict(self.limits)),
        }

    def dualray(self, *args: str) -> str:
        done = subprocess.run(
            self.command("-m", "dualray", *args),
            env=self.environment, capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        return "".join(path.read_text() for path in self.directory.glob(f"dualray-*/logs/{name}.log"))

    def close(self) -> None:
        with contextlib.suppress(AssertionError):
            self.dualray("stop")


class NamespacedMachine(Machine):
    """One that has a network namespace for itself."""

    def __init__(self, network: Network, number: int) -> None:
        super().__init__(f"10.77.{network.subnet}.{number}", network.directory / f"m{number}", network.limits)
        self.network = network
        self.name = f"{network.name}m{number}"
        self.port = f"port{number}"
        ip("netns", "add", self.name)
        ip("-n", network.name, "link", "add", self.port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("-n", network.name, "link", "set", self.port, "master", "bridge0", "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")

    def command(self, *args: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *super().command(*args)]

    def cut(self) -> None:
        """Nothing comes through any more, in either direction, and nobody is told."""
        ip("-n", self.network.name, "link", "set", self.port, "down")

    def heal(self) -> None:
        ip("-n", self.network.name, "link", "set", self.port, "up")

    def part(self, other: NamespacedMachine) -> None:
        """Nothing comes through between the two any more, in either direction, and nobody is told."""
        for here, there in ((self, other), (other, self)):  # to an interface that nobody has
            ip("-n", here.name, "neigh", "replace", there.address,
               "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")  # fmt: skip

    def join(self, other: NamespacedMachine) -> None:
        """End a parting."""
        for here, there in ((self, other), (other, self)):
            ip("-n", here.name, "neigh", "del", there.address, "dev", "eth0")

    def limit(self, bits_per_s: int, burst: str = "512kb") -> None:
        """Let no more than this through its network interface, in each direction; after a rest, `burst` at once.

        Raises:
            RuntimeError: this kernel has no token bucket filter, or this machine no `tc` (package iproute2).
        """
        self._shape("add", "tbf", "rate", f"{bits_per_s}bit", "burst", burst, "latency", "50ms")

    def unlimit(self) -> None:
        """End `limit`."""
        self._shape("del")

    def _shape(self, verb: str, *shape: str) -> None:
        for namespace, device in ((self.name, "eth0"), (self.network.name, self.port)):
            command = ["tc", "-n", namespace, "qdisc", verb, "dev", device, "root", *shape]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=20)
            except FileNotFoundError as error:
                raise RuntimeError(str(error)) from error
            if done.returncode != 0:
                raise RuntimeError(f"tc says: {done.stderr.strip()}")

    def close(self) -> None:
        self.heal()
        super().close()
        ip("netns", "del", self.name)


class Network:
    """A bridge, in a namespace of its own: the machine's own network is not touched.

    Args:
        directory: made here, and removed with the network; a short path, for the sake of sockets' paths.
        limits: of the clusters that run in it.
    """

    def __init__(self, directory: Path, limits: Mapping[str, Any] | None = None) -> None:
        self.subnet = os.getpid() % 250 + 1
        self.name = f"dr{os.getpid()}"
        self.limits = limits or {}
        self.machines: list[NamespacedMachine] = []
        self.directory = directory
        directory.mkdir()
        ip("netns", "add", self.name)
        ip("-n", self.name, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.name, "link", "set", "bridge0", "up")

    def machine(self) -> NamespacedMachine:
        self.machines.append(NamespacedMachine(self, len(self.machines) + 1))
        return self.machines[-1]

    def close(self) -> None:
        for machine in reversed(self.machines):  # the head last: a node that looks for its head stops late
            machine.close()
        ip("netns", "del", self.name)
        shutil.rmtree(self.directory)


class Loopback:
    """Where namespaces cannot be made: loopback addresses of this machine, 127.77.0.1 and so on."""

    def __init__(self, directory: Path, limits: Mapping[str, Any] | None = None) -> None:
        self.limits = limits or {}
        self.machines: list[Machine] = []
        self.directory = directory
        directory.mkdir()

    def machine(self) -> Machine:
        number = len(self.machines) + 1
        self.machines.append(Machine(f"127.77.0.{number}", self.directory / f"m{number}", self.limits))
        return self.machines[-1]

    def close(self) -> None:
        for machine in self.machines:
            machine.close()
        shutil.rmtree(self.directory)


class Driver:
    """A program on a machine that defines what `script` says, and then evaluates expressions, one a line.

    Args:
        script: Python, in which `sys.argv[1]` is the first of `arguments`.
    """

    def __init__(self, machine: Machine, script: str, *arguments: str) -> None:
        path = machine.directory / f"driver{len(list(machine.directory.glob('driver*.py')))}.py"
        evaluate = "\nfor line in sys.stdin:\n    print(json.dumps(eval(line)), flush=True)\n"
        path.write_text("import json, sys\n" + textwrap.dedent(script) + evaluate)
        self.process = subprocess.Popen(
            machine.command(str(path), *arguments),
            env=machine.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, expression: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the driver has ended"
        return json.loads(line)

    def __call__(self, expression: str) -> Any:
        self.ask(expression)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
