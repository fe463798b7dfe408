"""Runs a script that uses dualray, unchanged, in a process of its own, and tells how it ended.

Two ways lead to that process. A new interpreter: what a single run takes. A fork of this one, which has dualray loaded
already: what exploration takes, a hundred times in a row. In either the child runs the script as `python` would, writes
how it ended to a file, and ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from dualray import as_ray
from dualray.as_ray.programs import run
from dualray.sim.usercode.isolation import HEAP
from dualray.sim.usercode.patches import continue_in_fork
from dualray.testing.failures import ERROR_CHARACTERS_MAX, Ended, failed
from dualray.testing.orphans import end_with_parent

__all__ = ["SCRIPT_TIMEOUT_S", "Start", "last_line", "run_script", "start_fork", "start_interpreter"]

SCRIPT_TIMEOUT_S: Final = 600.0
"""Wall time that a script may take."""

OUTPUT_CHARACTERS_MAX: Final = 20_000
"""Of what a script prints that are kept: the end."""

Start = Callable[[Path, Sequence[str], Mapping[str, str], Path], int]
"""Runs a script in a new process until its end; its exit code. Given: script, arguments, environment, and a directory
that receives `stdout`, `stderr` and `ended.json`.

Raises:
    TimeoutError: the script ran for longer than SCRIPT_TIMEOUT_S.
"""


def run_script(
    script: Path, arguments: Sequence[str], settings: Mapping[str, str], start: Start | None = None
) -> Ended:
    """Run a script to its end.

    Args:
        settings: of dualray, by the names of their environment variables without DUALRAY_; others that stand in this
            process's environment are not handed on, but DUALRAY_AS_RAY.
        start: how its process begins; None: as a new interpreter.
    """
    kept = {as_ray.VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name in kept or not name.startswith("DUALRAY_")}
    environment |= {f"DUALRAY_{name}": value for name, value in settings.items()}
    with _directory() as directory:
        try:
            code = (start or start_interpreter)(script, arguments, environment, directory)
        except TimeoutError:
            words = f"{script} did not end within {SCRIPT_TIMEOUT_S:g} s of real time"
            return Ended(error=("TimeoutError", "Exception"), message=words, output=_read(directory / "stdout"))
        output = _read(directory / "stdout")
        written = _read(directory / "ended.json")
        if written:
            ended = _from_json(written)
            if ended.error != _EXIT:
                return replace(ended, output=output[-OUTPUT_CHARACTERS_MAX:])
        if code:
            words = f"ended with code {code}: {_read(directory / 'stderr')[-ERROR_CHARACTERS_MAX:]}"
            return Ended(error=_EXIT, message=words, output=output[-OUTPUT_CHARACTERS_MAX:])
        return Ended(result=last_line(output), output=output[-OUTPUT_CHARACTERS_MAX:])


_EXIT: Final = ("SystemExit",)


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A temporary directory that no finalizer of a forked child removes."""
    directory = Path(tempfile.mkdtemp(prefix="dualray-script-"))
    try:
        yield directory
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _from_json(text: str) -> Ended:
    fields: dict[str, Any] = json.loads(text)
    return Ended(**{**fields, "error": tuple(fields["error"])})


def last_line(stdout: str) -> Any:
    """The last line of what a script printed, as JSON if it is that."""
    lines = stdout.strip().splitlines()
    if not lines:
        return None
    try:
        return json.loads(lines[-1])
    except json.JSONDecodeError:
        return lines[-1]


# ---- the two ways ----------------------------------------------------------------------------------------------------


def start_interpreter(script: Path, arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> int:
    """Run it in a new interpreter. See `Start`."""
    with (directory / "stdout").open("wb") as out, (directory / "stderr").open("wb") as err:
        command = [sys.executable, "-m", "dualray.testing.scripts", str(directory), str(script), *arguments]
        try:
            return subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err, timeout=SCRIPT_TIMEOUT_S
            ).returncode
        except subprocess.TimeoutExpired:
            raise TimeoutError from None


def start_fork(script: Path, arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> int:
    """Run it in a fork of this process, which must have no other thread that matters. See `Start`.

    The caller limits the time: nothing here does.
    """
    pid = os.fork()
    if pid == 0:
        _become(script, arguments, environment, directory)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(script: Path, arguments: Sequence[str], environment: Mapping[str, str], directory: Path) -> NoReturn:
    """The forked child: never returns to the code of its parent."""
    code = 1
    try:
        end_with_parent()
        atexit._clear()
        continue_in_fork()
        gc.unfreeze()  # as in a new interpreter: `init` freezes what is there by then
        HEAP.is_frozen = False
        for number, name in ((1, "stdout"), (2, "stderr")):
            file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(file, number)
            os.close(file)
        sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - for the life of this process
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
        os.environ.clear()
        os.environ.update(environment)
        code = perform(directory, [str(script), *arguments])
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def perform(directory: Path, words: Sequence[str]) -> int:
    """In the script's own process: run it, write how it ended, and give its exit code."""
    try:
        if os.environ.get(as_ray.VARIABLE):
            as_ray.install()
        run(words)
        ended, code = Ended(), 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
        ended = Ended(error=_EXIT)
    except Exception as error:  # noqa: BLE001 - the script's own: it is told to the caller
        ended, code = failed(error), 1
    if code or ended.error:
        (directory / "ended.json").write_text(json.dumps(asdict(ended)))
    return code


if __name__ == "__main__":
    sys.exit(perform(Path(sys.argv[1]), sys.argv[2:]))
