"""Guards the ways out of a simulation: connections and processes of user code.

A connection to elsewhere, and a process that is started, go on in real time and are answered by what is no part of the
simulation: what a task does so takes no virtual time, and may come out otherwise the next time. A task or an actor that
makes such a call is refused by name, unless it, or the simulation, says `sim_unsafe="allow"`; then, and always in
the driver, which feeds the program, the call is made and noted, and `dualray scenario check` says so. A socket of a
task that is refused may still find a free port, and its node's address: see `ports.py`. `os.fork` and
`os.exec*` are among them: they would copy, or replace, the simulator. What a module does while it is imported is left
alone: libraries look at their machine then.
"""

from __future__ import annotations

import errno
import multiprocessing.process
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final, NoReturn

from dualray.shared.core.interruption import is_importing
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.usercode.ports import Ports
from dualray.sim.usercode.substitutions import Substitution

METHODS: Final = (
    (subprocess.Popen, "__init__", "subprocess.Popen"),
    (multiprocessing.process.BaseProcess, "start", "multiprocessing.Process.start"),
)
"""Methods of classes, and what a user calls them."""

FUNCTIONS: Final[tuple[tuple[ModuleType, tuple[str, ...]], ...]] = (
    (socket, ("create_connection", "getaddrinfo")),
    (os, ("system", "fork", "forkpty", "posix_spawn", "posix_spawnp", "execv", "execve")),
)


def substitutions(
    user_fiber: Callable[[], Fiber | None], refuses: Callable[[Fiber, str], bool], ports: Ports
) -> list[Substitution]:
    """What is replaced.

    refuses: is asked with the fiber whose user code makes a call, and the call's name.
    ports: of the virtual nodes.
    """

    def guarded(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            fiber = user_fiber()
            if fiber is not None and not is_importing(sys._getframe()) and refuses(fiber, name):
                _refuse(name, fiber.owner.hostname)
            return original(*args, **kwargs)

        return call

    make = socket.socket.__init__

    def make_socket(
        self: socket.socket,
        family: int = -1,
        type: int = -1,  # noqa: A002 - Python's name
        proto: int = -1,
        fileno: int | None = None,
    ) -> None:
        fiber = user_fiber()
        if fiber is None or is_importing(sys._getframe()) or not refuses(fiber, "socket.socket"):
            make(self, family, type, proto, fileno)
            return
        node = fiber.owner.hostname
        if fileno is not None or not ports.may_take(self, family, type):
            _refuse("socket.socket", node)
        make(self, family, type, proto)
        ports.take(self, node, lambda name: _refuse(name, node))

    replaced = [
        Substitution(holder=holder, name=method, replacement=guarded(vars(holder)[method], name))
        for holder, method, name in METHODS
    ]
    replaced.append(Substitution(holder=socket.socket, name="__init__", replacement=make_socket))
    replaced += [
        Substitution.of(module, name, guarded(getattr(module, name), f"{module.__name__}.{name}"))
        for module, names in FUNCTIONS
        for name in names
    ]
    return replaced


def _refuse(name: str, node: str) -> NoReturn:
    raise PermissionError(
        errno.EPERM,
        f"{name}() uses something outside the simulation: in a task on {node} it takes real time, and its result may "
        f"differ in the next run. Give the task a duration= and return a fixed value, or allow the call: "
        f'sim_unsafe="allow" in its options or in init(mode="sim")',
    )
