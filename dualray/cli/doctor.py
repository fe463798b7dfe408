"""The commands about dualray itself: `dualray doctor`, `help` and `version`."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import dualray
from dualray.cli.declare import Argument, Commands, Exit
from dualray.cli.error_help import ENTRIES
from dualray.cli.printing import AsJson
from dualray.settings import DEFAULT_PORT

FAILED = 1
UNUSABLE = 2
MIB: Final = 1 << 20
SHM: Final = Path("/dev/shm")
SHM_MIN_BYTES: Final = 256 * MIB
FILES_MIN: Final = 1024

app = Commands()


@app.add("version")
def version_command() -> None:
    """Show the version of dualray, and whether dualray's scheduling code is compiled with mypyc.

    Example: dualray version
    """
    print(f"dualray {dualray.__version__}{', with a compiled core' if dualray.__compiled__ else ''}")


# ---- help ------------------------------------------------------------------------------------------------------------


@app.add("help")
def help_command(
    key: Annotated[
        str | None,
        Argument(
            help="Short name (key) of an error, such as store-full, or the name of an error class, such as "
            "ObjectStoreFullError. Without an argument, `dualray help` lists the short names and the classes of all "
            "errors."
        ),
    ] = None,
) -> None:
    """Print the meaning, the cause and the fix of an error of dualray.

    Example: dualray help store-full
    """
    if key is None:
        width = max(map(len, ENTRIES))
        for name, entry in ENTRIES.items():
            print(f"{name:<{width}}  {', '.join(entry.errors)}")
        return
    by_class = {error.lower(): name for name, entry in ENTRIES.items() for error in entry.errors}
    found = key if key in ENTRIES else by_class.get(key.rpartition(".")[2].lower())
    if found is None:
        near = get_close_matches(key, [*ENTRIES, *by_class], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        print(f"dualray: the help has no entry {key!r}.{hint} `dualray help` lists all entries", file=sys.stderr)
        raise Exit(UNUSABLE)
    entry = ENTRIES[found]
    print(f"{found}: {', '.join(entry.errors)}\n\n{entry.means}\n\nCause: {entry.cause}\n\nFix: {entry.fix}")


# ---- doctor ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check of the machine.

    Attributes:
        result: ok; slow: works, and could work better; risky: works, and other users can do harm; wrong: real mode does
            not work.
        fix: what to do; "" when nothing is.
    """

    name: str
    result: str
    found: str
    fix: str = ""


@app.add("doctor")
def doctor_command(
    as_json: AsJson = False,
) -> None:
    """Check whether dualray can run on this machine, and print how to fix each problem.

    `dualray doctor` exits with code 1 if dualray cannot run real processes on this machine, even if simulations can
    run.

    Example: dualray doctor
    """
    checks = list(_checks())
    wrong = [check for check in checks if check.result == "wrong"]
    if as_json:
        print(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        fixes = [check for check in checks if check.fix and check.result != "wrong"]
        verdict = f"{len(wrong)} of {len(checks)} checks failed" if wrong else f"all {len(checks)} checks passed"
        if fixes:
            verdict += f", {len(fixes)} with advice"
        print(f"dualray {dualray.__version__}: {verdict}")
        for check in checks:
            print(f"  {check.result:<5}  {check.name:<13}  {check.found}")
            if check.fix:
                print(f"  {'':<5}  {'':<13}  fix: {check.fix}")
    if wrong:
        raise Exit(FAILED)


def _checks() -> Iterator[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Check("Python", "ok" if supported else "wrong", version, "" if supported else "use Python 3.11, 3.12 or 3.13")
    compiled = dualray.__compiled__
    yield Check(
        "core",
        "ok" if compiled else "slow",
        "compiled" if compiled else "not compiled: tasks and simulations take about twice as long",
        "" if compiled else "build a wheel on a machine that has a C compiler (make release), and install the wheel",
    )
    yield _shared_memory()
    yield _temporary_directory()
    yield _redis()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= FILES_MIN
    yield Check("open files", "ok" if enough else "slow", f"limit {soft}", "" if enough else f"ulimit -n {hard}")
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()  # macOS has none
    yield Check("CPUs", "ok", f"{usable} usable of {os.cpu_count()}")
    yield _port()
    for package, extra in (("plotly", "whatif"), ("pyarrow", "whatif")):
        there = find_spec(package) is not None
        fix = "" if there else f"pip install 'dualray[{extra}]'"
        yield Check(package, "ok" if there else "slow", "installed" if there else "not installed", fix)


def _shared_memory() -> Check:
    if not SHM.is_dir():
        return Check("shared memory", "wrong", f"there is no {SHM}", f"mount -t tmpfs tmpfs {SHM}")
    usage = shutil.disk_usage(SHM)
    found = f"{usage.free // MIB:,} of {usage.total // MIB:,} MiB free in {SHM}"
    if usage.free >= SHM_MIN_BYTES:
        return Check("shared memory", "ok", found)
    return Check("shared memory", "slow", found, "docker run --shm-size=2g, or mount -o remount,size=2G /dev/shm")


def _temporary_directory() -> Check:
    directory = Path(tempfile.gettempdir())
    status = directory.stat()
    found, private = str(directory), "set TMPDIR to a directory that other users cannot change"
    if status.st_uid not in (0, os.getuid()):
        return Check("TMPDIR", "risky", f"{found} belongs to uid {status.st_uid}, who can rename its files", private)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not status.st_mode & stat.S_ISVTX:
        return Check("TMPDIR", "risky", f"other users can rename the files in {found} (no sticky bit)", private)
    return Check("TMPDIR", "ok", found)


def _redis() -> Check:
    server = shutil.which("redis-server")
    if server is not None:
        return Check("Redis", "ok", server)
    return Check("Redis", "ok", "no redis-server is on PATH; dualray uses its embedded server")


def _port() -> Check:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return Check("port", "ok", f"{DEFAULT_PORT} is in use; `dualray status` shows whether a cluster uses it")
    return Check("port", "ok", f"{DEFAULT_PORT} is free for `dualray start --head`")
