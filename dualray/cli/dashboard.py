"""`dualray dashboard`: the live page of a cluster, of a run, or of a program that is started to be watched."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from dualray.cli.declare import Argument, Commands, Option
from dualray.cli.printing import KEPT_LOGS_HELP, PORT_HELP, refuse
from dualray.exceptions import DualrayError

if TYPE_CHECKING:
    from dualray.dashboard.feeds import Feed

app = Commands()

EXTRA: Final = ("starlette", "uvicorn")
SOURCES_MAX: Final = 2
SCENARIOS: Final = (".yaml", ".yml")
RECORD: Final = ".parquet"
LOOPBACK: Final = "127.0.0.1"
NICENESS: Final = 10
"""The niceness of this process, so that the program that it watches runs first."""
GC_THRESHOLDS: Final = (100_000, 20, 100)
"""The rows of a run are in use as long as the page: to look for garbage among them took half of the time."""


@app.add(
    "dashboard",
    # `dualray dashboard train.py --mode sim`: options that this command lacks are for `dualray run`.
    takes_unknown=True,
)
def dashboard_command(
    sources: Annotated[
        list[str] | None,
        Argument(
            metavar="[SOURCE]...",
            help="Cluster or run that the dashboard shows: host:port of a cluster, a decision log directory, a "
            "scenario file or a script. If the source is a script, `dualray dashboard` also accepts the options of "
            "`dualray run`, such as --mode. To compare two runs in the dashboard, give the decision log directories "
            "of both runs. By default, the dashboard shows the cluster that runs on this machine.",
        ),
    ] = None,
    host: Annotated[
        str,
        Option(
            help="Network address at which dualray serves the dashboard. Only programs on this machine can "
            "reach the default address, 127.0.0.1."
        ),
    ] = LOOPBACK,
    port: Annotated[int, Option(help=PORT_HELP, min=0, max=65535)] = 0,
    pace: Annotated[
        float | None,
        Option(help="Maximum speed of a simulation that the dashboard starts, in simulated seconds per real second."),
    ] = None,
    logs: Annotated[Path | None, Option(help=KEPT_LOGS_HELP)] = None,
    open_: Annotated[bool, Option("--open", help="Open the dashboard in the web browser of this machine.")] = False,
) -> None:
    """Serve a live, read-only web page about a cluster or a run, until you press Ctrl-C.

    Example: dualray dashboard train.py --mode sim --nodes 4 --open
    """
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        are = "are" if len(missing) > 1 else "is"
        refuse(
            f"the dashboard needs {' and '.join(missing)}, which {are} not installed: pip install 'dualray[dashboard]'"
        )
    if pace is not None and not pace > 0:
        refuse(f"--pace {pace!r} must be more than 0: --pace is the number of virtual seconds in one real second")
    with contextlib.ExitStack() as stack:
        # as with Ctrl-C, the command ends its processes and deletes its files
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        stack.callback(signal.signal, signal.SIGTERM, before)
        try:
            feeds = _feeds(sources or ["auto"], logs, pace, stack)
            bound = _bind(host, port)
        except (DualrayError, ValueError, OSError) as error:
            refuse(error)
        _serve(feeds, bound, host, is_opened=open_)


def _feeds(sources: Sequence[str], logs: Path | None, pace: float | None, stack: contextlib.ExitStack) -> list[Feed]:
    from dualray.dashboard.feeds import DirectoryFeed  # noqa: PLC0415 - other commands need neither psutil nor msgpack

    feeds: list[Feed] = []
    for number, source in enumerate(sources):
        if len(feeds) == SOURCES_MAX:
            raise ValueError(f"the dashboard shows at most {SOURCES_MAX} runs side by side; leave out {source!r}")
        path = Path(source)
        if path.is_dir():
            feed: Feed = DirectoryFeed(path, logs=logs)
        elif path.suffix == RECORD:
            from dualray.dashboard.from_record import RecordFeed  # noqa: PLC0415 - as above

            feed = RecordFeed(path)
        elif path.suffix in (*SCENARIOS, ".py"):
            if not path.is_file():
                raise ValueError(f"there is no file {source!r}")
            is_script = path.suffix == ".py"
            words = list(sources[number:]) if is_script else [source]
            feed = _started(words, pace, stack, is_script=is_script)
            stack.callback(feed.close)
            feeds.append(feed)
            if is_script:
                break
            continue
        else:
            feed = _cluster(source)
        stack.callback(feed.close)
        feeds.append(feed)
    if len({feed.name for feed in feeds}) < len(feeds):  # runs/1/log and runs/2/log
        for feed, source in zip(feeds, sources, strict=False):
            feed.name = feed.tables.head["name"] = source
    return feeds


def _cluster(source: str) -> Feed:
    from dualray.dashboard.from_cluster import ClusterFeed, is_address  # noqa: PLC0415 - as above

    if source.startswith("-"):
        raise ValueError(f"`dualray dashboard` has no option {source!r}; `dualray dashboard --help` lists its options")
    if not is_address(source):
        raise ValueError(
            f"{source!r} does not exist; give a run's directory (decision_log=DIR), a scenario file, a script, "
            f"or host:port of a cluster"
        )
    return ClusterFeed(os.environ.get("DUALRAY_ADDRESS", source) if source == "auto" else source)


def _started(words: Sequence[str], pace: float | None, stack: contextlib.ExitStack, *, is_script: bool) -> Feed:
    """Start a program for the page to watch. The program records its run in a directory that this command deletes."""
    from dualray.dashboard.feeds import DirectoryFeed  # noqa: PLC0415 - as above

    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dualray-dashboard-")))
    record, kept, output = directory / "run", directory / "logs", directory / "output"
    record.mkdir()
    command = [sys.executable, "-m", "dualray"]
    command += (
        ["run", "--decision-log", str(record)] if is_script else ["scenario", "run", "--decision-log", str(record)]
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "DUALRAY_LOG_DIRECTORY": str(kept)}
    if pace is not None:
        environment["DUALRAY_PACE"] = str(pace)
    with output.open("wb") as sink:
        program = subprocess.Popen(
            [*command, *words], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=environment
        )
    return DirectoryFeed(record, name=Path(words[0]).name, logs=kept, program=program, output=output)


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
        bound.listen()  # a browser that opens the link at once waits for the first answer
    except OSError as error:
        bound.close()
        why = f"{error.strerror}; give another --port"
        raise ValueError(f"the dashboard cannot listen at {host}:{port}: {why}") from None
    return bound


def _serve(feeds: Sequence[Feed], bound: socket.socket, host: str, *, is_opened: bool) -> None:
    from dualray.dashboard.server import Dashboard, new_token, web_server  # noqa: PLC0415 - of an extra

    port = bound.getsockname()[1]
    named = f"[{host}]" if ":" in host else host
    names = {named} | ({"localhost"} if host in (LOOPBACK, "::1") else set())
    token = new_token()
    page = Dashboard(feeds, token=token, hosts=[f"{name}:{port}" for name in names])
    link = f"http://{named}:{port}/#token={token}"
    with contextlib.suppress(OSError):  # it may not, in some containers
        os.nice(NICENESS)
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    page.start()
    server = web_server(page)
    for number in (signal.SIGINT, signal.SIGTERM):  # they end the server also before it has begun to serve
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    print(f"{' and '.join(feed.name for feed in feeds)}: open {link}")
    if host not in (LOOPBACK, "localhost", "::1"):
        print("Anyone who has this link and can reach this machine can see the run. The page is not encrypted.")
    print(
        "Ctrl-C stops this page, and a program that this command started. A cluster, or a run that was started "
        "elsewhere, continues."
    )
    sys.stdout.flush()
    if is_opened:
        webbrowser.open(link)
    try:
        server.run(sockets=[bound])
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # Ctrl-C ends a slow close
        page.close()
        bound.close()
