from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from click.testing import CliRunner

import dualray
from dualray.cli import error_help
from dualray.cli.app import GROUPS, app
from tests.report.support import simulate, two_steps

SCRIPT = """
import os, sys
from helper import HELPED
import dualray as ray
assert __name__ == "__main__"
ray.init()
@ray.remote
def f(x):
    return x + 1
print(ray.get(f.remote(1)), len(ray.nodes()), ray.get_runtime_context().mode, HELPED, sys.argv[1:])
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A script that imports its neighbour, and leaves its cluster running."""
    (tmp_path / "helper.py").write_text("HELPED = 'helped'\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def dualray_command(*args: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """`dualray ARGS`, as a user would."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    command = [sys.executable, "-m", "dualray", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=clean | environment, timeout=60)


def in_process(*args: object, code: int = 0, **environment: str) -> str:
    """The same without a process, for commands that run no script; stdout and stderr, with its lines unfolded."""
    clean: dict[str, str | None] = {name: None for name in os.environ if name.startswith("DUALRAY_")}
    result = CliRunner().invoke(app, [*map(str, args)], env=clean | {"COLUMNS": "200"} | environment)
    assert result.exit_code == code, result.output
    return result.output


# ---- run ---------------------------------------------------------------------------------------------------------


def test_run_takes_settings_and_leaves_the_rest_to_the_script(script: Path):
    done = dualray_command("run", script, "a", "--mode", "sim", "--quiet", "--size", "3", "--nodes", "3", "-v")
    assert done.stderr == ""
    assert done.stdout == "2 3 sim helped ['a', '--size', '3', '-v']\n"


def test_run_names_the_option_that_an_argument_of_the_script_may_be_meant_for(script: Path):
    for given, meant in (("--node=3", "--nodes"), ("--mod", "--mode"), ("--num-cpu", "--num-cpus")):
        done = dualray_command("run", script, "--mode", "sim", given)
        assert done.returncode == 0, done.stderr
        assert f"dualray: {given.partition('=')[0]} is an argument of {script}. Did you mean {meant}?" in done.stderr
    for others in (["--batch-size", "3"], ["--", "--node=3"]):
        assert "Did you mean" not in dualray_command("run", script, "--mode", "sim", *others).stderr


def test_run_after_two_dashes_leaves_everything_to_the_script(script: Path):
    done = dualray_command("run", "--mode", "sim", script, "--", "--nodes", "3")
    assert done.stdout == "2 1 sim helped ['--nodes', '3']\n"


def test_run_writes_logs_also_when_the_script_forgets_to_shut_down(script: Path, tmp_path: Path):
    log = tmp_path / "log"
    done = dualray_command("run", script, "--mode", "sim", "--decision-log", log, "--nodes", 2)
    assert done.returncode == 0
    assert "match a logged command; 0 actions match none." in in_process("replay", log)


def test_run_passes_several_faults(script: Path):
    faults = ("--faults", "kill node-1 at 1s", "--faults", "kill node-7 at 1s")
    done = dualray_command("run", script, "--mode", "sim", "--nodes", 3, *faults)
    assert done.returncode == 1
    assert "the cluster has no node 'node-7'" in done.stderr


def test_run_ends_as_the_script_does(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nsys.exit(7)\n")
    assert dualray_command("run", script).returncode == 7
    script.write_text("raise KeyError('lost')\n")
    done = dualray_command("run", script)
    assert done.returncode == 1
    assert done.stderr.endswith("KeyError: 'lost'\n")


def only_the_users_frames(stderr: str, script: Path) -> bool:
    files = {line.split('"')[1] for line in stderr.splitlines() if line.startswith('  File "')}
    return files <= {str(script)}


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("def f(:\n", "SyntaxError: invalid syntax\n"),
        ("import dualray\ndualray.init()\n", "nodes are node-0 to node-0\n"),
        ("def f():\n    try:\n        1 / 0\n    finally:\n        {}['a']\nf()\n", "KeyError: 'a'\n"),
        ("import sys\nsys.excepthook = lambda *it: print('own', file=sys.stderr)\n1 / 0\n", "own\n"),
    ],
)
def test_run_shows_the_frames_of_the_script_alone(tmp_path: Path, text: str, end: str):
    script = tmp_path / "script.py"
    script.write_text(text)
    done = dualray_command("run", script, "--mode", "sim", "--faults", "kill node-5 at 2s")
    assert done.returncode == 1
    assert done.stderr.endswith(end)
    assert only_the_users_frames(done.stderr, script)


MANY = """
import dualray as ray
ray.init()
@ray.remote(max_retries=9)
def count_hits(x):
    return x
@ray.remote(duration=0.5)
def merge(*parts):
    return sum(parts)
print(ray.get(merge.remote(*[count_hits.remote(x) for x in range(20)])))
raise SystemExit(3)
"""


def test_run_says_what_a_simulation_was_in_eight_lines(tmp_path: Path):
    script = tmp_path / "many.py"
    script.write_text(MANY)
    faults = [f"kill worker when count_hits starts {number}" for number in (3, 5, 7, 9, 11)]
    faults += ["kill node-3 when count_hit starts 9", "kill node-2 at 5s"]
    options = [part for fault in faults for part in ("--faults", fault)]
    done = dualray_command("run", script, "--mode", "sim", "--nodes", 4, *options)
    assert (done.returncode, done.stdout) == (3, "190\n")
    lines = done.stderr.splitlines()
    assert len(lines) <= 8
    assert lines[0].startswith("dualray: simulated 0.5")
    assert lines[0].endswith(" s of virtual time on 4 nodes, seed 0")
    assert lines[1] == "dualray: 21 tasks, 5 retries"
    assert [line.startswith("dualray: fault at 0.00") for line in lines[2:5]] == [True] * 3
    assert lines[5] == "dualray: and 2 more faults; `dualray run --json` lists all"
    assert "did you mean 'count_hits'? (and 1 more)" in lines[6]
    assert lines[7].startswith("dualray: assumed that each call of ")
    assert "count_hits" in lines[7]
    assert "merge" not in lines[7]

    as_json = dualray_command("run", script, "--json", "--mode", "sim", "--nodes", 4, *options)
    found = json.loads(as_json.stderr)
    assert (as_json.returncode, found["tasks"], found["retries"]) == (3, 21, 5)
    assert len(found["faults"]) == 5
    assert dualray_command("run", script, "--quiet", "--mode", "sim").stderr == ""


def test_run_says_what_of_a_simulation_was_ignored(tmp_path: Path):
    script = tmp_path / "plain.py"
    script.write_text("print('done')\n")
    done = dualray_command("run", script, "--mode", "real", "--faults", "kill node-1 at 1s", "--nodes", 7)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == f"dualray: --nodes and --faults had no effect: {script} ran in real mode\n"
    done = dualray_command("run", script, "--nodes", 7)
    assert "had no effect" in done.stderr
    assert "add --mode sim" in done.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["nowhere.py"], "there is no file 'nowhere.py'"),
        (["SCRIPT", "--mode", "sym"], "--mode 'sym' must be 'real', 'sim' or 'ray'. Did you mean 'sim'?"),
        (["SCRIPT", "--mode", "sim", "--nodes", "0"], "--nodes '0' must be between 1 and 1,000,000"),
        (["SCRIPT", "--mode", "sim", "--faults", "kill node-1"], "fault 'kill node-1' does not say when"),
        (["SCRIPT", "--mode", "sim", "--faults", "break node-1"], "fault 'break node-1' is not understood"),
    ],
)
def test_run_refuses_what_it_cannot_use(script: Path, args: list[str], why: str):
    done = dualray_command("run", *[str(script) if arg == "SCRIPT" else arg for arg in args])
    assert done.returncode == 2
    assert done.stderr.startswith("dualray: ")
    assert why in done.stderr
    assert done.stdout == ""


# ---- config ------------------------------------------------------------------------------------------------------


def test_config_shows_values_sources_and_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dualray.toml").write_text("num_gpus = 2\n[limits]\npush_window_max = 7\n")
    shown = in_process("config", DUALRAY_NODES="11")
    rows = {row[0]: row[1:] for row in (_cells(line) for line in shown.splitlines()) if row}
    assert rows["nodes"][:2] == ["11", "environment"]
    assert rows["num_gpus"][:2] == ["2", "dualray.toml"]
    assert rows["mode"][:2] == ["real", "default"]
    assert rows["push_window_max"][:3] == ["7", "tasks", "dualray.toml"]
    assert rows["lease_idle_ns"][:3] == ["2,000,000", "ns", "default"]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_config_refuses_a_setting_that_is_wrong():
    assert "DUALRAY_NODES='many' must be a whole number" in in_process("config", code=2, DUALRAY_NODES="many")


# ---- replay, timeline --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    simulate(lambda: two_steps(3), path, faults=["kill node-2 when digest starts 4"])
    return path


def test_replay_of_a_run(log: Path):
    shown = in_process("replay", log)
    assert "; 0 processes differ." in shown
    assert "; 0 actions match none." in shown
    assert in_process("replay", log, "--quiet").startswith("Replay OK: ")
    assert json.loads(in_process("replay", log, "--json"))["orphans"] == 0
    assert "driver-1" in in_process("replay", log, "-v")
    assert "driver-1" not in shown
    assert "killed" in shown


def test_replay_of_one_log(log: Path):
    shown = in_process("replay", log / "head.decisions")
    assert "head head, seed 0" in shown
    assert "decisions replayed: " in shown
    assert "commands equal: " in shown


def test_replay_of_a_log_that_differs_names_the_first_command(log: Path, tmp_path: Path):
    unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
    unpacker.feed((log / "driver-1.decisions").read_bytes())
    values = list(unpacker)
    next(value for value in values[1:] if value[2])[2] = []
    path = tmp_path / "driver-1.decisions"
    path.write_bytes(b"".join(msgpack.packb(value) for value in values))
    shown = in_process("replay", path, code=1)
    assert "driver-1: the first command that differs: decision " in shown
    assert "logged:  None" in shown


def test_replay_of_a_log_that_was_cut_off_says_so(log: Path, tmp_path: Path):
    path = tmp_path / "head.decisions"
    path.write_bytes((log / "head.decisions").read_bytes()[:-3])
    assert "ends in the middle of a decision" in in_process("replay", path)


def test_replay_refuses_what_is_no_log(tmp_path: Path):
    assert "there is no file or directory" in in_process("replay", tmp_path / "nowhere", code=2)
    assert "has no traces" in in_process("replay", tmp_path, code=2)
    (tmp_path / "text").write_text("hello")
    assert "the file is not a decision log" in in_process("replay", tmp_path / "text", code=2)


def test_timeline_writes_a_file(log: Path, tmp_path: Path):
    path = tmp_path / "picture.json"
    assert "https://ui.perfetto.dev" in in_process("timeline", log, "-o", path)
    assert json.loads(path.read_text())["traceEvents"]
    assert "is not a directory" in in_process("timeline", tmp_path / "nowhere", "-o", path, code=2)


# ---- the rest ----------------------------------------------------------------------------------------------------


def test_sim_params_shows_every_number_with_its_source():
    shown = in_process("sim", "params")
    assert "nic_bytes_per_s" in shown
    assert "1,250,000,000" in shown
    assert "assumption" in shown
    for name in ("num_cpus", "object_store_memory", "retransmits_max", "clock_read_max"):
        assert name in shown


def test_help_lists_all_commands_in_groups_and_imports_none():
    text = "import sys; from dualray.cli import app_main\ntry: app_main()\nexcept SystemExit: pass\nprint(*sys.modules)"
    for option in ("--help", "--version"):
        done = subprocess.run([sys.executable, "-c", text, option], capture_output=True, text=True, timeout=60)
        modules = done.stdout.splitlines()[-1].split()
        assert done.stdout.startswith("Usage: dualray" if option == "--help" else f"dualray {dualray.__version__}")
        assert not {"numpy", "dualray.api", "dualray.shared.core", "dualray.cli.run"} & set(modules)
    said = CliRunner().invoke(app, ["--help"]).output
    for title, commands in GROUPS.items():
        assert f"{title}:" in said
        for name in commands:
            assert f"  {name} " in said
            of_command = CliRunner().invoke(app, [name, "--help"])
            assert of_command.exit_code == 0, name
            assert "Usage: " in of_command.output
    assert CliRunner().invoke(app, ["reprot"]).exit_code == 2


OF_ANOTHER_MEANING = {
    "--memory": "predict: of the machine; start: what tasks can reserve",
    "--nodes": "predict: several numbers",
    "--num-cpus": "start: of one node",
    "--output": "explore: a directory",
    "--policy": "predict: of placement; status: of scaling",
    "--quiet": "run: there is nothing but the summary to leave out",
    "--timeline": "import-ray: a file that is read",
}
"""Options that do not mean the same in every command, with the command that differs."""


def each_command() -> Iterator[tuple[str, Any]]:
    group: Any = app
    for commands in GROUPS.values():
        for name in commands:
            command = group.get_command(None, name)
            children = getattr(command, "commands", None) or {"": command}
            yield from ((f"{name} {child}".strip(), each) for child, each in children.items())


def test_an_option_has_one_meaning_in_all_commands():
    meanings: dict[str, dict[str, list[str]]] = {}
    for words, command in each_command():
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help" and not option.hidden:
                first = option.help.partition(". ")[0].removesuffix(".")
                meanings.setdefault(option.opts[0], {}).setdefault(first, []).append(words)
    several = {name: found for name, found in meanings.items() if len(found) > 1}
    assert {name: found for name, found in several.items() if name not in OF_ANOTHER_MEANING} == {}
    assert several.keys() == OF_ANOTHER_MEANING.keys()


def test_every_command_has_an_example():
    assert [words for words, command in each_command() if "\n\nExample: dualray " not in command.help] == []


def test_every_error_has_an_entry_in_help_and_in_the_docs():
    docs = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
    known = [error for entry in error_help.ENTRIES.values() for error in entry.errors]
    assert len(known) == len(set(known))
    for name in known:
        error = getattr(dualray.exceptions, name)
        assert error_help.key_of(error.__new__(error)) is not None
    for name, cls in vars(dualray.exceptions).items():
        is_raised = isinstance(cls, type) and issubclass(cls, Exception) and "Never raised" not in (cls.__doc__ or "")
        bases = ("DualrayError", "ActorError", "RaySystemError", "InvalidTransition", "InvariantViolation", "RayError")
        if is_raised and issubclass(cls, dualray.exceptions.DualrayError) and cls.__name__ not in bases:
            assert name.startswith("_") or error_help.key_of(cls.__new__(cls)) is not None, name
    for key, entry in error_help.ENTRIES.items():
        said = CliRunner().invoke(app, ["help", key]).output
        assert said.startswith(f"{key}: ") and f"Cause: {entry.cause}" in said and f"Fix: {entry.fix}" in said
        assert f"### {key}\n" in docs and f"- Cause: {entry.cause}\n- Fix: {entry.fix}\n" in docs
    assert "store-full: " in CliRunner().invoke(app, ["help", "ObjectStoreFullError"]).output
    wrong = CliRunner().invoke(app, ["help", "stor-full"])
    assert wrong.exit_code == 2 and "Did you mean 'store-full'?" in wrong.output


@pytest.mark.parametrize(("mode", "result"), [(0o1777, "ok"), (0o700, "ok"), (0o777, "risky"), (0o770, "risky")])
def test_doctor_looks_at_who_can_rename_files_of_sessions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int, result: str
):
    tmp_path.chmod(mode)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    [check] = [check for check in found if check["name"] == "TMPDIR"]
    assert check["result"] == result
    assert check["found"] == str(tmp_path) if result == "ok" else "no sticky bit" in check["found"]


def test_doctor_names_what_it_checked_and_what_to_do(monkeypatch: pytest.MonkeyPatch):
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)
    assert {"Python", "core", "shared memory", "Redis", "open files", "CPUs", "port"} <= {row["name"] for row in found}
    assert all(row["fix"] for row in found if row["result"] == "wrong")
    monkeypatch.setattr(sys, "version_info", (3, 9, 1, "final", 0))
    said = CliRunner().invoke(app, ["doctor"])
    assert said.exit_code == 1
    assert "checks failed" in said.output.splitlines()[0]
    assert "fix: use Python 3.11, 3.12 or 3.13" in said.output


def test_a_first_scenario_is_written_and_runs_and_nothing_is_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert "scenario new" in CliRunner().invoke(app, ["scenario", "list", "."]).output
    assert CliRunner().invoke(app, ["scenario", "new"]).exit_code == 0
    ran = CliRunner().invoke(app, ["scenario", "run", "first.yaml", "--decision-log", "log"])
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.startswith("2470\n")
    assert "'first.yaml' exists" in CliRunner().invoke(app, ["scenario", "new"]).output
    several = CliRunner().invoke(app, ["explain", "square", "log"])
    assert several.exit_code == 2
    assert "'square' is the name of 20 tasks; give one of these ids:" in several.output
    assert "2 attempts" in several.output.splitlines()[1]
    one = CliRunner().invoke(app, ["get", "task", "14cfc9", "--log", "log"])
    assert one.exit_code == 0 and "14cfc9a496ebc658" in one.output
    assert "'square' matches 20 tasks" in CliRunner().invoke(app, ["get", "task", "square", "--log", "log"]).output
    none = CliRunner().invoke(app, ["list", "tasks", "--log", "log", "--filter", "name=nix"])
    assert (none.exit_code, none.output) == (0, "no tasks match --filter (22 in all)\n")
    for mine, text in (("mine.html", "<p>mine</p>"), ("mine.py", "import dualray\n")):
        Path(mine).write_text(text)
        for command in (["report", "log", "-o", mine], ["timeline", "log", "-o", mine]):
            refused = CliRunner().invoke(app, command)
            assert refused.exit_code == 2 and "dualray overwrites only files that dualray wrote" in refused.output
            assert Path(mine).read_text() == text
    for _ in range(2):
        assert CliRunner().invoke(app, ["timeline", "log", "-o", "line.json"]).exit_code == 0
    assert CliRunner().invoke(app, ["replay", "log"]).output.startswith("Replay OK: ")


def test_the_shell_completes_commands_and_options():
    for words, found in (("dualray pre", "plain,predict\n"), ("dualray predict --fault", "plain,--fault-files\n")):
        environment = {"_DUALRAY_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", "from dualray.cli.app import app; app(prog_name='dualray')"],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **environment},
        )
        assert (done.stdout, done.returncode) == (found, 0), done.stderr


def test_version():
    assert in_process("version") == f"dualray {dualray.__version__}\n"
