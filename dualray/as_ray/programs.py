"""Running a program as Python does: a script, a module or a text."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from dualray import api


def run(words: Sequence[str], on_error: Callable[[Exception], None] | None = None) -> None:
    """Run `["script.py", ...]`, `["-m", "module", ...]` or `["-c", "code", ...]` as the main module; a cluster that it
    leaves running is shut down. on_error: is called with the exception that ended the program, before that shutdown.

    Raises:
        FileNotFoundError, ImportError: there is no such script or module.
        BaseException: what the program raises.
    """
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            sys.path[0] = str(Path.cwd())
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        elif words[0] == "-c":
            sys.argv = ["-c", *words[2:]]
            sys.path[0] = ""
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(words[1], "<string>", "exec"), vars(main))
        else:
            sys.argv = list(words)
            sys.path[0] = str(Path(words[0]).resolve().parent)
            runpy.run_path(words[0], run_name="__main__")
    except Exception as error:
        if on_error is not None:
            on_error(error)
        raise
    finally:
        api.shutdown()
