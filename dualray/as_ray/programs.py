"""Running a program as Python does: a script, a module or a text."""

from __future__ import annotations

import atexit
import runpy
import sys
import traceback
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import SourceFileLoader
from io import open_code
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from dualray import api
from dualray.settings import resolve
from dualray.shared.core.serialization import note_directory_of


class _ExitFunctions:
    """The functions that a program registers with `atexit`: they are called at its end, while its cluster still runs.

    Functions of dualray and of the standard library stay with Python, which calls them when the process ends.
    """

    def __init__(self) -> None:
        self._register, self._unregister = atexit.register, atexit.unregister
        self._functions: list[partial[Any]] = []

    def __enter__(self) -> Self:
        atexit.register, atexit.unregister = self.register, self.unregister
        return self

    def __exit__(self, *_: object) -> None:
        atexit.register, atexit.unregister = self._register, self._unregister

    def register(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """Stands for `atexit.register`."""
        package = (getattr(function, "__module__", None) or "").partition(".")[0]
        if package == "dualray" or (package in sys.stdlib_module_names and package != "builtins"):
            return self._register(function, *args, **kwargs)
        self._functions.append(partial(function, *args, **kwargs))
        return function

    def unregister(self, function: Callable[..., Any], /) -> None:
        """Stands for `atexit.unregister`."""
        self._functions = [each for each in self._functions if each.func != function]
        self._unregister(function)

    def call(self) -> None:
        """Call them, the last one first. One that fails does not keep the others from being called."""
        while self._functions:
            function = self._functions.pop()
            try:
                function()
            except SystemExit:
                pass  # as in Python
            except BaseException as error:  # noqa: BLE001 - it is the user's
                sys.stderr.write(f"Exception ignored in atexit callback: {function.func!r}\n")
                traceback.print_exception(type(error), error, error.__traceback__, chain=False)


def run(words: Sequence[str], on_error: Callable[[Exception], None] | None = None) -> None:
    """Run `["script.py", ...]`, `["-m", "module", ...]` or `["-c", "code", ...]` as the main module; a cluster that it
    leaves running is shut down, after the functions that it gave to `atexit`. on_error: is called with the exception
    that ended the program, before both.

    Raises:
        FileNotFoundError, ImportError: there is no such script or module.
        BaseException: what the program raises.
    """
    with _ExitFunctions() as exit_functions:
        try:
            _run(words)
        except Exception as error:
            if on_error is not None:
                on_error(error)
            raise
        finally:
            exit_functions.call()
            api.shutdown()


def _run(words: Sequence[str]) -> None:
    if words[0] == "-m":
        sys.argv = list(words[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path[0] = ""
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec", dont_inherit=True), vars(main))
    else:
        sys.argv = list(words)
        sys.path[0] = str(Path(words[0]).resolve().parent)
        if Path(words[0]).is_dir() or zipfile.is_zipfile(words[0]):
            runpy.run_path(words[0], run_name="__main__")
        else:
            _run_script(words[0])


def _run_script(script: str) -> None:
    """Run a file of Python's. Its `__file__` is absolute, as in Python. In a simulation it is the path that was given,
    for functions travel with it, and a simulation is the same in each directory. Their code keeps the path that was
    given in both modes: it is a part of their ids."""
    note_directory_of(str(Path(script).absolute()))
    is_simulated = resolve({})["mode"].value == "sim"
    path = script if is_simulated else str(Path(script).absolute())
    with open_code(str(Path(script).absolute())) as file:
        code = compile(file.read(), script, "exec", dont_inherit=True)
    main, before = ModuleType("__main__"), sys.modules["__main__"]
    vars(main).update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    finally:
        sys.modules["__main__"] = before
