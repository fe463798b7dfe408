"""What workers print, where it is shown and kept, and the errors that nobody reads."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dualray
from dualray.cluster_utils import Cluster
from dualray.real.observe.driver_output import WINDOW_S, Deduplicator, Rules
from dualray.real.observe.worker_output import LINE_BYTES_MAX, LogFile, WorkerOutput, mark
from dualray.shared.core.execution import Execution
from dualray.shared.model.ids import ActorID, child_task_id, root_task_id

pytestmark = pytest.mark.leak_check

TASK = child_task_id(root_task_id("", 1), 0, 1)
DEADLINE_S = 30.0


def eventually(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE_S:g} s in vain until {what}"
        time.sleep(0.01)


def run(tmp_path: Path, program: str, **options: Any) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, **options)


def test_an_actor_with_a_repr_is_called_what_it_says(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        import dualray as ray

        ray.init(mode="real", num_cpus=2)

        class Counted:
            made = 0

            def __init__(self, name):
                print("constructed", str(name)[0])
                self.name = name

            def __repr__(self):
                Counted.made += 1
                if self.name is None:
                    raise ValueError("no name")
                return f"Counted(\\n{self.name})"

            def say(self):
                print("one", str(self.name)[0])
                return Counted.made

        for name in ("x" * 1000, "a", None):
            actor = ray.remote(num_cpus=0)(Counted).remote(name)
            ray.get(actor.say.remote())
            assert ray.get(actor.say.remote()) == 1
        """,
    )
    assert done.returncode == 0, done.stderr
    shown = re.sub(r"pid=\d+", "pid=N", done.stdout).splitlines()
    assert sorted(set(shown)) == [
        "(Counted pid=N) constructed N",
        "(Counted pid=N) constructed a",
        "(Counted pid=N) constructed x",
        "(Counted pid=N) one N",
        "(Counted( a) pid=N) one a",
        f"(Counted( {'x' * 191} pid=N) one x",
    ]


# ---- The pieces --------------------------------------------------------------------------------------------------


class Shown(list[tuple[str, int, bytes, int, list[bytes]]]):
    def __call__(self, name: str, pid: int, task_id: bytes, stream: int, lines: list[bytes]) -> None:
        self.append((name, pid, task_id, stream, lines))


def output(tmp_path: Path) -> tuple[WorkerOutput, Shown, Path]:
    shown, path = Shown(), tmp_path / "w1.out"
    return WorkerOutput(worker="node-0/w1", stream=1, file=LogFile(path), show=shown, lines_kept=3), shown, path


def test_lines_go_under_the_name_of_the_task_that_prints_them(tmp_path: Path) -> None:
    stream, shown, path = output(tmp_path)
    f = mark(Execution(task_id=TASK, name="f"))
    method = mark(Execution(task_id=TASK, name="Counter.add", actor_id=ActorID(bytes(16))))
    printed = b"before\n" + f + b"one\n\nhalf" + method + b"two\nrest"
    for byte in printed:
        stream.feed(bytes((byte,)))
    stream.feed(b"")
    by_name: list[tuple[str, bytes]] = [(name, line) for name, _, _, _, lines in shown for line in lines]
    assert by_name == [
        ("node-0/w1", b"before"),
        ("f", b"one"),
        ("f", b""),
        ("f", b"half"),
        ("Counter", b"two"),
        ("Counter", b"rest"),
    ]
    assert {entry[1:3] for entry in shown[1:]} == {(os.getpid(), TASK)}
    assert path.read_bytes() == b"before\none\n\nhalf\ntwo\nrest\n"
    assert list(stream.last_lines) == [b"half", b"two", b"rest"]


@pytest.mark.parametrize("noise", [b"\0dualray-task\tx\n", b"\0dualray-task\tname\tpid\tzz\n", b"\0\xff\0\n"])
def test_what_looks_like_a_mark_is_a_line(tmp_path: Path, noise: bytes) -> None:
    stream, shown, _ = output(tmp_path)
    stream.feed(noise)
    stream.feed(b"")
    assert [(name, len(lines)) for name, _, _, _, lines in shown] == [("node-0/w1", 1)]


def test_a_line_without_end_is_cut_and_needs_no_memory(tmp_path: Path) -> None:
    stream, shown, _ = output(tmp_path)
    for _ in range(40):
        stream.feed(b"x" * 10_000)
    stream.feed(b"")
    assert sum(len(line) for *_, lines in shown for line in lines) == 400_000
    assert max(len(line) for *_, lines in shown for line in lines) <= LINE_BYTES_MAX


def test_a_file_that_cannot_be_written_costs_no_line(tmp_path: Path) -> None:
    shown = Shown()
    stream = WorkerOutput(worker="w", stream=2, file=LogFile(tmp_path / "gone" / "x"), show=shown, lines_kept=3)
    stream.feed(b"one\n")
    stream.feed(b"two\n")
    assert [lines for *_, lines in shown] == [[b"one"], [b"two"]]


def test_the_same_line_of_several_processes_is_shown_once_and_counted() -> None:
    lines = Deduplicator("node-0")
    shown = [lines.take("f", pid, "node-0", 1, "loading", 0.1 * pid) for pid in range(1, 9)]
    assert shown == ["(f pid=1) loading\n"] + [None] * 7
    assert lines.due(WINDOW_S) == []
    assert lines.due(WINDOW_S + 0.1) == [(1, "(f pid=8) loading [repeated 7x across cluster]\n")]
    assert lines.take("f", 3, "node-1", 1, "loading", WINDOW_S + 1) == "(f pid=3, node-1) loading\n"


def test_one_process_may_repeat_itself_and_streams_are_told_apart() -> None:
    lines = Deduplicator("node-0")
    assert [lines.take("f", 1, "node-0", 1, "x", 0) for _ in range(2)] == ["(f pid=1) x\n"] * 2
    assert lines.take("f", 2, "node-0", 2, "x", 0) == "(f pid=2) x\n"
    assert lines.due(None) == []


def test_rules_say_which_lines_count_as_repeated() -> None:
    def shown(rules: Rules, line: str) -> list[str | None]:
        lines = Deduplicator("node-0", rules)
        return [lines.take("f", pid, "node-0", 1, line, 0) for pid in (1, 2)]

    assert shown(Rules(window_s=0), "x") == ["(f pid=1) x\n", "(f pid=2) x\n"]
    rules = Rules(window_s=1, shown=re.compile("keep"), hidden=re.compile("drop|keep"))
    assert shown(rules, "keep it") == ["(f pid=1) keep it\n", "(f pid=2) keep it\n"]
    assert shown(rules, "drop it") == [None, None]
    lines = Deduplicator("node-0", rules)
    assert [lines.take("f", pid, "node-0", 1, "x", 0) for pid in (1, 2)] == ["(f pid=1) x\n", None]
    assert lines.due(0.9) == []
    assert lines.due(1.1) == [(1, "(f pid=2) x\n")]


def test_under_the_name_ray_numbers_do_not_tell_lines_apart() -> None:
    lines = Deduplicator("node-0", Rules(rays_hint=" (how to see all)"))
    assert lines.take("f", 1, "node-0", 1, "step 1 of 0x3f", 0) == "(f pid=1) step 1 of 0x3f\n"
    assert lines.take("f", 1, "node-0", 1, "step 2 of 0x3f", 0) == "(f pid=1) step 2 of 0x3f\n"
    assert [lines.take("f", pid, "node-0", 1, f"step {pid} of 9", 0) for pid in (2, 1, 3)] == [None] * 3
    assert [lines.take("f", pid, "node-0", 1, "17 0.5", 0) for pid in (1, 2)] == [
        "(f pid=1) 17 0.5\n",
        "(f pid=2) 17 0.5\n",
    ]
    assert lines.due(None) == [(1, "(f pid=3) step 3 of 9 [repeated 3x across cluster] (how to see all)\n")]
    assert [lines.take("f", pid, "node-0", 1, "again", 9) for pid in (1, 2, 3)] == ["(f pid=1) again\n", None, None]
    assert lines.due(None) == [(1, "(f pid=3) again [repeated 2x across cluster]\n")]


# ---- Whole sessions ----------------------------------------------------------------------------------------------

PRINTING = """
    import os, sys, time
    import dualray

    dualray.init(num_cpus=2{options})

    @dualray.remote
    def say(what):
        print(what)
        print("to stderr", file=sys.stderr)

    @dualray.remote
    def parent():
        dualray.get(say.remote("nested"))

    @dualray.remote
    class Counter:
        def add(self):
            print("adding")

    dualray.get([say.remote("hello"), parent.remote()])
    dualray.get(Counter.remote().add.remote())
"""


def test_lines_have_the_name_of_task_or_actor(tmp_path: Path) -> None:
    done = run(tmp_path, PRINTING.format(options=""), check=True)
    assert sorted(re.sub(r"pid=\d+", "pid=N", done.stdout).splitlines()) == [
        "(Counter pid=N) adding",
        "(say pid=N) hello",
        "(say pid=N) nested",
    ]
    assert set(re.sub(r"pid=\d+", "pid=N", done.stderr).splitlines()) == {"(say pid=N) to stderr"}


@pytest.mark.parametrize("option", ["log_to_driver=False", "redirect_output=True"])
def test_output_can_be_kept_in_files_only(tmp_path: Path, option: str) -> None:
    logs = tmp_path / "kept"
    done = run(tmp_path, PRINTING.format(options=f", {option}, log_directory={str(logs)!r}"), check=True)
    assert (done.stdout, done.stderr) == ("", "")
    [session] = logs.iterdir()
    assert {"head.log", "node-0.log"} <= {path.name for path in session.iterdir()}
    printed = sorted(line for path in session.glob("node-0-w*.out") for line in path.read_text().splitlines())
    assert printed == ["adding", "hello", "nested"]
    assert [path.read_text() for path in session.glob("node-0-w*.err") if "to stderr" in path.read_text()]
    log = (session / "node-0.log").read_text()
    assert re.search(r"worker node-0/w\d+ has pid \d+", log)
    assert re.search(r"actor [0-9a-f]{32}: .*state ALIVE", (session / "head.log").read_text())


def test_a_closed_pipe_ends_the_showing_and_nothing_else(tmp_path: Path) -> None:
    program = """
        import os, sys
        import dualray

        dualray.init(num_cpus=1)

        @dualray.remote
        def say(number):
            print("line", number)
            print("error", number, file=sys.stderr)
            return number

        assert dualray.get(say.remote(0)) == 0
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
        kept = os.dup(2)
        os.dup2(write, 2)
        total = sum(dualray.get([say.remote(number) for number in range(2000)]))
        pid = dualray.get(dualray.remote(os.getpid).remote())
        dualray.shutdown()
        os.write(kept, b"total %d" % total)
        os._exit(0)
    """
    done = run(tmp_path, program)
    assert (done.returncode, done.stderr[-13:]) == (0, "total 1999000")


def test_errors_that_nobody_reads_are_told_once(tmp_path: Path) -> None:
    program = """
        import dualray

        dualray.init(num_cpus=2)

        @dualray.remote(max_retries=0)
        def fail(what, *waits):
            raise ValueError(f"failed: {what}")

        @dualray.remote
        def use(value):
            return value

        @dualray.remote
        def parent():
            dualray.wait([fail.remote("nested")])

        fail.remote("dropped before it ran")
        waited = fail.remote("dropped after it ran")
        dualray.wait([waited])
        del waited
        held = fail.remote("held at the end")
        read = fail.remote("read")
        twice = fail.remote("carried on")
        uses = [use.remote(twice), use.remote(twice)]
        dualray.wait(uses, num_returns=2)
        one, two = fail.options(num_returns=2).remote("two results, one read")
        for ref in (read, one):
            try:
                dualray.get(ref)
            except ValueError:
                pass
        dualray.get(parent.remote())
        dualray.wait([held])
        dualray.get([use.remote(1) for _ in range(20)])
    """
    done = run(tmp_path, program, check=True)
    told = sorted(re.findall(r"^.*ValueError: failed: (.*)$", done.stderr, re.MULTILINE))
    assert told == ["carried on", "dropped after it ran", "dropped before it ran", "held at the end", "nested"]
    assert (
        len(
            re.findall(
                r"^dualray: fail \(task [0-9a-f]{32}\) failed, and the program never read its error:",
                done.stderr,
                re.MULTILINE,
            )
        )
        == 4
    )
    assert len(re.findall(r"^\(parent pid=\d+\) dualray: fail \(task ", done.stderr, re.MULTILINE)) == 1


# ---- A cluster ---------------------------------------------------------------------------------------------------

ANOTHER_DRIVER = """
    import sys
    import dualray

    dualray.init(address=sys.argv[1])

    @dualray.remote
    def parent():
        @dualray.remote(resources={"far": 1})
        def child():
            print("of the other driver")
        dualray.get(child.remote())

    dualray.get(parent.remote())
"""


def test_on_a_cluster_lines_reach_the_driver_whose_they_are(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    @dualray.remote(resources={"far": 1})
    def far() -> None:
        print("from afar")

    @dualray.remote
    def near() -> None:
        print("from here")
        dualray.get(far.remote())

    script = tmp_path / "other.py"
    script.write_text(textwrap.dedent(ANOTHER_DRIVER))
    with Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 2}) as cluster:
        cluster.add_node(num_cpus=1, resources={"far": 1})
        dualray.get(near.remote())
        other = subprocess.run(
            [sys.executable, str(script), cluster.address], capture_output=True, text=True, timeout=60, check=True
        )
        dualray.get(far.remote())
        dualray.shutdown()
    shown = sorted(re.sub(r"pid=\d+", "pid=N", capfd.readouterr().out).splitlines())
    assert shown == ["(far pid=N, node-1) from afar", "(far pid=N, node-1) from afar", "(near pid=N) from here"]
    assert re.fullmatch(r"\(child pid=\d+, node-1\) of the other driver\n", other.stdout)


def test_a_line_that_a_task_leaves_open_is_shown_when_the_task_has_ended(tmp_path: Path) -> None:
    program = """
        import sys
        import dualray

        @dualray.remote
        def say():
            print("one", end=" ")
            print("two", end=" ")
            print("three", end="", file=sys.stderr)

        dualray.init(num_cpus=1)
        dualray.get(say.remote())
        sys.stdin.read()
        """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    with subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as driver:
        assert driver.stdout is not None
        assert driver.stderr is not None
        assert driver.stdout.readline().endswith(") one two \n")  # while the driver waits
        assert driver.stderr.readline().endswith(") three\n")
        driver.communicate("")
    assert driver.returncode == 0


REPEATING = """
    import dualray.as_ray

    dualray.as_ray.install()
    import ray

    ray.init(num_cpus=2)

    @ray.remote(num_cpus=0)
    class Teller:
        def tell(self):
            print("told")
            print("noise")

    tellers = [Teller.remote() for _ in range(3)]
    ray.get([teller.tell.remote() for teller in tellers])
    ray.shutdown()
    """


def test_rays_variables_say_which_lines_count_as_repeated() -> None:
    variables = os.environ | {"RAY_DEDUP_LOGS_ALLOW_REGEX": "^told", "RAY_DEDUP_LOGS_SKIP_REGEX": "noise"}
    command = [sys.executable, "-c", textwrap.dedent(REPEATING)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100, check=True)
    assert sorted(line.partition(") ")[2] for line in done.stdout.splitlines()) == ["told"] * 3
