"""What open pages cost a run: `python -m benchmarks.dashboard`; the extra `dashboard` must be installed.

A simulation, and a program on real processes, run with a page's server beside them: with no page, with fifty pages that
ask as often as the server lets them, and with fifty that have asked once and are stopped. Times are those of the run:
wall, and CPU time of its own processes, which others on the machine disturb less. The CPU times of the server and of
the pages, which are threads of this process, stand apart: where the run needs all CPUs, it lacks their sum. Each run
with a server is one of a pair: the other is the same run without a server, just before it or just after it, in turn.
Each pair is printed, and at the end the median change and the middle half. The whole takes at most MINUTES, on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import itertools
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Final

import psutil

PAGES: Final = 50
MINUTES: Final = 4.0
ALONE: Final = "no server"
KINDS: Final = ("50 pages", "50 stopped", "no page")
ASK_S: Final = 0.5
PROGRAM: Final = """
import sys, time
import dualray as ray

@ray.remote(duration=0.01)
def f(x):
    return x

mode, count, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ray.init(mode=mode, num_cpus=2, decision_log=directory)
ray.get([f.remote(i) for i in range(20)])
import _io, os

def uptime():
    return float(_io.open("/proc/uptime").read().split()[0])

def ticks():
    # of this process and all that it has started
    children, own, spent = {}, {}, 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = _io.open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(name))
            own[int(name)] = int(fields[11]) + int(fields[12])
    waiting = [int(_io.open("/proc/self/stat").read().split()[0])]  # os.getpid() of a simulation is another
    while waiting:
        pid = waiting.pop()
        spent += own.get(pid, 0)
        waiting += children.get(pid, [])
    return spent

started, before = uptime(), ticks()
for _ in range(10):
    ray.get([f.remote(i) for i in range(count // 10)])
print(uptime() - started, (ticks() - before) / os.sysconf("SC_CLK_TCK"), flush=True)
ray.shutdown()
"""
"""The clock of a simulation is virtual; the machine's uptime is not."""


Times = tuple[float, float, float, float]
"""Wall and CPU seconds of a run, and CPU seconds of the server and of the pages meanwhile."""
Pair = tuple[Times, Times]
"""Of a run with a server, and of the one without."""


class Pages:
    """Pages that are open; `is_stopped`: they ask once and never again."""

    def __init__(self, link: str, *, is_stopped: bool) -> None:
        found = re.fullmatch(r"http://([\d.]+):(\d+)/#token=(\S+)", link)
        assert found is not None, link
        self._host, self._port, self._token = found[1], int(found[2]), found[3]
        self._is_stopped = is_stopped
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._page, args=(number,)) for number in range(PAGES)]
        for thread in self._threads:
            thread.start()

    def _page(self, number: int) -> None:
        """Keeps one connection, as a browser does, and reads of an answer what a page needs to ask again. It takes CPU
        time that nobody else needs, for browsers are on other machines."""
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        connection = HTTPConnection(self._host, self._port, timeout=300)
        version = 0
        while not self._over.is_set():
            path = f"/api/0/changes?after={version}&page={number}"
            connection.request("GET", path, headers={"x-dualray-token": self._token})
            body = connection.getresponse().read()
            version = int(body[len(b'{"version":') : body.index(b",")])
            _, found, wait_s = body.rpartition(b'"wait_s":')
            if self._is_stopped:
                self._over.wait()
            self._over.wait(float(wait_s.rstrip(b"}")) if found else ASK_S)
        connection.close()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()


def run(mode: str, count: int, pages: str) -> Times:
    """Run the program once, and return its times."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary, "run")
        directory.mkdir()
        program = Path(temporary, "program.py")
        program.write_text(PROGRAM)
        (directory / "empty.trace").touch()
        shown = open_pages = None
        if pages != ALONE:
            command = [sys.executable, "-m", "dualray", "dashboard", str(directory)]
            shown = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert shown.stdout is not None
            link = shown.stdout.readline().split()[-1]
            shown.stdout.readline()
            if pages != "no page":
                open_pages = Pages(link, is_stopped=pages == "50 stopped")
                time.sleep(1)
        words = [sys.executable, str(program), mode, str(count), str(directory)]
        environment = {**os.environ, "DUALRAY_SIM_UNSAFE": "allow"}
        of_server, of_pages = _cpu_s(shown), time.process_time()
        found = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        of_server, of_pages = _cpu_s(shown) - of_server, time.process_time() - of_pages
        if open_pages is not None:
            open_pages.close()
        if shown is not None:
            shown.terminate()
            shown.wait()
        assert found.returncode == 0, found.stderr
        wall, cpu = found.stdout.split()[-2:]
        return float(wall), float(cpu), of_server, of_pages


def _cpu_s(process: subprocess.Popen[str] | None) -> float:
    if process is None:
        return 0.0
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def main() -> None:
    """Print the pairs, and a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", choices=("sim", "real"), default=["sim", "real"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS[:2]))
    parser.add_argument("--minutes", type=float, default=MINUTES, help="no pair begins that would end later")
    parser.add_argument(
        "--count", type=int, default=3000, help="tasks on real processes; a simulation has ten times as many"
    )
    given = parser.parse_args()
    ends_s = time.monotonic() + 60 * given.minutes
    longest_s = 0.0
    pairs: dict[tuple[str, str], list[Pair]] = {(mode, kind): [] for mode in given.modes for kind in given.kinds}
    for number in itertools.count(1):
        for (mode, kind), found in pairs.items():
            began_s = time.monotonic()
            if found and began_s + longest_s > ends_s:
                print(f"\n{'':16}  change of wall time          of CPU time")
                for (mode_of, kind_of), each in pairs.items():
                    print(f"{mode_of:5}{kind_of:11}  {_change(each, 0)}   {_change(each, 1)}   {len(each)} pairs")
                return
            count = given.count * (10 if mode == "sim" else 1)
            first, second = (kind, ALONE)[:: 1 if number % 2 else -1]
            times = {first: run(mode, count, first), second: run(mode, count, second)}
            found.append((times[kind], times[ALONE]))
            longest_s = max(longest_s, time.monotonic() - began_s)
            (wall, cpu, of_server, of_pages), (wall_alone, cpu_alone, *_) = found[-1]
            print(
                f"pair {number:2} {mode:5}{kind:11}  wall {wall:6.2f} s, alone {wall_alone:6.2f} s   "
                f"CPU {cpu:6.2f} s, alone {cpu_alone:6.2f} s   "
                f"server {of_server:5.2f} s, pages {of_pages:5.2f} s   (first: {first})",
                flush=True,
            )


def _change(pairs: Sequence[Pair], which: int) -> str:
    """By how much a run took longer than the other of its pair."""
    changes = [100 * (run_[which] / alone[which] - 1) for run_, alone in pairs]
    low, middle, high = statistics.quantiles(changes, n=4) if len(changes) > 1 else changes * 3
    return f"{middle:+5.1f} % ({low:+5.1f} to {high:+5.1f})"


if __name__ == "__main__":
    main()
