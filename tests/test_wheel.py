"""The wheel, built from this tree and installed in an environment that has never seen it, runs a program.

The wheel of every `make test` is of Python alone, for compiling takes minutes; the slow tests build the compiled one.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from types import ModuleType

import pytest

from dualray.testing.determinism import compare_runs

ROOT = Path(__file__).parent.parent

# Building and installing bring packages over the network; the timeout is for a slow one.
pytestmark = pytest.mark.timeout(600)

PROGRAM = """\
import dualray

dualray.init(mode="sim", nodes=3)


@dualray.remote
def f(x):
    return x + 1


assert dualray.get([f.remote(i) for i in range(4)]) == [1, 2, 3, 4]
dualray.shutdown()
print(dualray.__file__)
"""

CALLS = """\
import gc

import dualray


@dualray.remote
def add(one, other=0):
    return one + other


for mode in ("real", "sim"):
    dualray.init(mode=mode, num_cpus=2)
    dualray.get([add.remote(number) for number in range(50)])
    gc.collect()
    gc.disable()
    refs = [add.remote(number, other=1) for number in range(500)]
    assert sum(dualray.get(refs)) == sum(range(501))
    del refs
    print(gc.collect())
    gc.enable()
    dualray.shutdown()
"""


DEEP = """\
from dualray.shared.core.execution import Execution

for depth in range(120):
    inside = Execution(task_id=bytes(12))
    for _ in range(depth):
        inside = [inside]
    del inside  # with PYTHONMALLOC=debug, Python aborts where something has been written beside an object
print("intact")
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What the command prints; it sees neither this tree nor this environment."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DUALRAY_PURE", "DUALRAY_PROFILE")
    finished = subprocess.run(
        command,
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name not in hidden} | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, f"{command}\n{finished.stdout}\n{finished.stderr}"
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", directory, ROOT, cwd=directory, DUALRAY_PURE="1")
    (path,) = directory.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """hatch_build.py."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def compiled(build, tmp_path_factory) -> Path:
    """A directory with the package of the wheel that `make build` makes: with that on PYTHONPATH, this environment
    runs it."""
    if (why := build.why_pure()) is not None:
        pytest.skip(why)
    directory = tmp_path_factory.mktemp("compiled")
    command = (sys.executable, "-m", "build", "--wheel", "--outdir", directory / "dist", ROOT)
    run(*command, cwd=directory, DUALRAY_PURE="0", DUALRAY_PROFILE="1")
    (path,) = (directory / "dist").glob("*.whl")
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        directory / "here",
        path,
        cwd=directory,
    )
    return directory / "here"


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """The directory of the executables of a new virtual environment, which holds the wheel and what it asks for."""
    directory = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", directory, cwd=directory)
    executables = directory / "bin"
    run(
        executables / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        wheel,
        cwd=directory,
    )
    return executables


@pytest.fixture(scope="module")
def metadata(wheel) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return message_from_bytes(archive.read(name))


def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {"dualray/__init__.py", "dualray/py.typed", "dualray/shared/__init__.py"} <= set(names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"dualray", "dualray_as_ray.pth"}
    assert not [name for name in names if name.endswith((".pyc", ".so"))]


def test_wheel_says_what_it_needs(metadata):
    assert metadata["Name"] == "dualray"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert set(metadata.get_all("Provides-Extra")) >= {"tensorflow", "arrow", "examples", "bench", "test", "dev"}


@pytest.mark.slow
def test_installed_wheel_runs_a_program(environment, tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    imported_from = Path(run(environment / "python", script, cwd=tmp_path).strip())
    assert imported_from.is_relative_to(environment.parent), "the program ran on another dualray"


@pytest.mark.slow
def test_installed_wheel_has_a_command(environment, tmp_path):
    assert "Usage" in run(environment / "dualray", "--help", cwd=tmp_path)


@pytest.mark.slow
def test_installed_dependencies_agree(environment, tmp_path):
    run(environment / "python", "-m", "pip", "check", cwd=tmp_path)


# ---- The compiled core -----------------------------------------------------------------------------------------------


def test_the_same_modules_are_compiled(build):
    """A module that moves or is split stays compiled, and no other becomes so: a change of the list is meant."""
    kept = (ROOT / "tests" / "data" / "compiled_modules.txt").read_text().split()
    assert sorted(build.modules(ROOT)) == kept


def test_no_module_of_python_alone_makes_objects_without_their_constructor(build):
    """`object.__new__` refuses compiled classes; in compiled modules the build spells such calls out."""
    making = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dualray").rglob("*.py")
        if "= object.__new__\n" in path.read_text()
    }
    assert making and making <= set(build.modules(ROOT))


def test_bases_of_what_may_be_extended_may_be_extended(build):
    """mypyc refuses it else, and only who builds the wheel is told."""
    classes = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for name in build.modules(ROOT)
        for node in ast.parse((ROOT / name).read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    for name in build.EXTENSIBLE:
        compiled = [base for base in classes[name] if base in classes]
        assert set(compiled) <= set(build.EXTENSIBLE), name


def test_no_tuple_has_a_field_of_a_type_that_type_checkers_alone_import(build):
    """mypyc looks for the type of each field of a NamedTuple when the module is imported, unless it is a text."""
    wrong = []
    for name in build.modules(ROOT):
        tree = ast.parse((ROOT / name).read_text())
        guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        hidden = {
            alias.asname or alias.name
            for node in guarded
            for each in node.body
            if isinstance(each, ast.Import | ast.ImportFrom)
            for alias in each.names
        }
        tuples = [
            node
            for node in tree.body
            if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
        ]
        wrong += [
            f"{name}:{field.lineno}"
            for each in tuples
            for field in each.body
            if isinstance(field, ast.AnnAssign)
            and hidden & {part.id for part in ast.walk(field.annotation) if isinstance(part, ast.Name)}
        ]
    assert wrong == []


def test_what_is_compiled_is_spelled_out_line_for_line(build):
    names = build.modules(ROOT)
    assert "dualray/shared/machines/owner/owner.py" in names
    for name in names:
        before = (ROOT / name).read_text()
        after = build.spell_out(before, name)
        assert lines_of_definitions(after) == lines_of_definitions(before), name
        assert "slots=True" not in after


def lines_of_definitions(text: str) -> dict[str, int]:
    """Where each class and function stands, but for constructors."""
    found = [each for each in ast.walk(ast.parse(text)) if isinstance(each, ast.ClassDef | ast.FunctionDef)]
    return {each.name: each.lineno for each in found if each.name != "__init__"}


def test_a_record_is_spelled_out_with_its_constructor(build, monkeypatch):
    text = """\
from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lent:
    \"""Something.\"""

    key: bytes
    size_bytes: int = 0
    \"""Of it.\"""


def quickly(key):
    lent = _new(Lent)
    lent.key = key
    lent.size_bytes = len(
        key
    )
    return lent
"""
    spelled = build.spell_out(text, "dualray/shared/model/lent.py")
    assert "@mypyc_attr(allow_interpreted_subclasses=True, acyclic=True)" in spelled
    module = ModuleType("lent")
    monkeypatch.setitem(sys.modules, "lent", module)
    vars(module)["mypyc_attr"] = lambda **_: lambda cls: cls
    exec(spelled, vars(module))
    lent = module.Lent
    assert module.quickly(b"ab") == lent(key=b"ab", size_bytes=2)
    assert hash(lent(key=b"ab")) == hash(lent(key=b"ab", size_bytes=0))
    assert lent.__annotations__ == {"key": "bytes", "size_bytes": "int"}
    with pytest.raises(TypeError, match="key"):
        lent(size_bytes=1)


def test_constants_are_spelled_out_as_final_and_what_may_change_is_not(build):
    text = """\
from __future__ import annotations

from enum import Enum
from typing import Any, Final, TypeVar

T = TypeVar("T")
NOTES_MAX = 256
_SOUGHT: dict[str, "Any"] = {"é": 1}
KEPT: Final = 1
_READY, _OVER = State.READY, State.OVER
_TABLE = frozenset(
    {1}
)
count = 1
TAKEN = 1
TAKEN = 2
SWITCHED = False


def switch() -> None:
    global SWITCHED
    SWITCHED = True
"""
    spelled = build.spell_out(text, "dualray/shared/model/lent.py").split("\n")
    assert spelled[6:13] == [
        "NOTES_MAX: _typing.Final = 256",
        """_SOUGHT: _typing.Final[dict[str, 'Any']] = {"é": 1}""",
        "KEPT: Final = 1",
        "_READY: _typing.Final[State] = State.READY; _OVER: _typing.Final[State] = State.OVER",
        "_TABLE: _typing.Final = frozenset(",
        "    {1}",
        ")",
    ]
    assert [line for line in spelled if "_typing.Final" in line] == [spelled[6], spelled[7], spelled[9], spelled[10]]


def test_a_record_keeps_its_own_hash_and_makes_what_each_has_for_itself(build, monkeypatch):
    text = """\
from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lent:
    \"""Something.\"""

    key: bytes
    held: dict[str, int] = field(default_factory=dict)

    def __hash__(self) -> int:
        return 7


"""
    module = ModuleType("lent")
    monkeypatch.setitem(sys.modules, "lent", module)
    vars(module)["mypyc_attr"] = lambda **_: lambda cls: cls
    exec(build.spell_out(text, "dualray/shared/model/lent.py"), vars(module))
    first, second = module.Lent(b"a"), module.Lent(b"a")
    first.held["x"] = 1
    assert second.held == {}
    assert module.Lent(b"a", {"x": 1}) == first
    assert hash(first) == 7


def test_a_wheel_is_of_python_alone_where_that_is_asked_for_or_no_compiler_is_there(build, monkeypatch):
    monkeypatch.setenv("DUALRAY_PURE", "1")
    assert build.why_pure() == "DUALRAY_PURE is set"
    monkeypatch.setenv("DUALRAY_PURE", "0")
    monkeypatch.setenv("CC", "a-compiler-that-is-not-there")
    assert build.why_pure() == "there is no C compiler (a-compiler-that-is-not-there)"


def test_a_profile_is_taken_where_that_is_asked_for_and_gcc_compiles(build, monkeypatch):
    monkeypatch.delenv("DUALRAY_PROFILE", raising=False)
    assert build.why_unguided() == "DUALRAY_PROFILE is not set"
    monkeypatch.setenv("DUALRAY_PROFILE", "1")
    monkeypatch.setenv("CC", "echo")
    assert build.why_unguided() == "echo is not gcc"
    if shutil.which("gcc"):
        monkeypatch.setenv("CC", "gcc -pthread")
        assert build.why_unguided() is None


def test_what_the_profile_is_taken_of_is_there(build):
    assert (ROOT / build.TRAINING).is_file()
    assert f'"/{build.TRAINING}"' in (ROOT / "pyproject.toml").read_text()  # and in the source distribution


@pytest.mark.slow
def test_the_environment_gives_processes_the_name_ray(environment, tmp_path):
    asks = "import importlib.util as it; print(it.find_spec('ray') is not None)"
    assert run(environment / "python", "-c", asks, cwd=tmp_path, DUALRAY_AS_RAY="1") == "True\n"
    assert run(environment / "python", "-c", asks, cwd=tmp_path, DUALRAY_AS_RAY="0") == "False\n"


RECORDED = """
import dualray

@dualray.remote
def double(number):
    return 2 * number

dualray.init(mode="sim", nodes=2, num_cpus=2, record="run.parquet")
dualray.get([double.remote(double.remote(number)) for number in range(20)])
dualray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)  # compiling takes minutes
def test_compiled_core_trains_the_demo_in_both_modes(compiled, tmp_path):
    says = "import dualray; print(dualray.__compiled__, dualray.__file__)"
    assert run(sys.executable, "-c", says, cwd=tmp_path, PYTHONPATH=str(compiled)).split() == [
        "True",
        str(compiled / "dualray" / "__init__.py"),
    ]
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    run(sys.executable, tmp_path / "examples" / "demo.py", cwd=tmp_path, PYTHONPATH=str(compiled))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "words",
    [
        "sim workload bag --tasks 1000 --nodes 10",
        f"explore {ROOT / 'scenarios' / 'mixed_swarm.yaml'} --seeds 4 --jobs 2",
        f"scenario check {ROOT / 'scenarios' / 'incast.yaml'}",
        f"scenario run {ROOT / 'scenarios' / 'features_swarm.yaml'}",
    ],
)
def test_compiled_core_runs_what_the_command_line_offers(compiled, tmp_path, words):
    run(sys.executable, "-m", "dualray", *words.split(), cwd=tmp_path, PYTHONPATH=str(compiled))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_core_predicts_a_recorded_run(compiled, tmp_path):
    (tmp_path / "recorded.py").write_text(RECORDED)
    run(sys.executable, tmp_path / "recorded.py", cwd=tmp_path, PYTHONPATH=str(compiled))
    predict = "-m dualray predict run.parquet --nodes 1,2 --seeds 2 --json"
    found = run(sys.executable, *predict.split(), cwd=tmp_path, PYTHONPATH=str(compiled))
    assert len(json.loads(found)["rows"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_calls_leave_nothing_to_the_garbage_collector(compiled, tmp_path):
    # A function within a function is a cycle where it is compiled: one for each call, if calls make one.
    (tmp_path / "calls.py").write_text(CALLS)
    found = run(sys.executable, tmp_path / "calls.py", cwd=tmp_path, PYTHONPATH=str(compiled))
    assert [int(count) < 50 for count in found.split()] == [True, True], found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_is_freed_deep_inside_of_other_objects_damages_no_memory(compiled, tmp_path):
    (tmp_path / "deep.py").write_text(DEEP)
    found = run(sys.executable, tmp_path / "deep.py", cwd=tmp_path, PYTHONPATH=str(compiled), PYTHONMALLOC="debug")
    assert found == "intact\n"


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a thousand programs, half of them on real processes
def test_compiled_core_passes_the_tests_of_both_modes(compiled, tmp_path):
    # Beside the tests there is no dualray of this tree, which they would find first.
    for name in ("tests", "scenarios", "examples", "benchmarks"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = (sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", "not slow", "-p", "no:cacheprovider")
    tests = ("tests/conformance", "tests/sim", "tests/train_library")
    run(*command, "--override-ini", "pythonpath=", *tests, cwd=tmp_path, PYTHONPATH=str(compiled))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["mixed_swarm", "rolling_node_loss", "actor_restarts"])
def test_compiled_core_decides_as_the_interpreted_one(compiled, tmp_path, name):
    # Both lie in the same place: what is pickled by value has the name of its file.
    package = shutil.copytree(compiled, tmp_path / "here")
    for core in ("compiled", "interpreted"):
        output = tmp_path / core
        output.mkdir()
        shutil.copy(ROOT / "scenarios" / f"{name}.yaml", output / "scenario.yaml")
        command = (sys.executable, "-m", "dualray.testing.determinism", output, ROOT / "scenarios")
        run(*command, cwd=tmp_path, PYTHONPATH=str(package))
        for library in package.rglob("*.so"):
            library.unlink()
    comparison = compare_runs(tmp_path / "compiled", tmp_path / "interpreted")
    assert comparison.divergence is None
    assert sum(subsystem.events for subsystem in comparison.subsystems) > 1000
