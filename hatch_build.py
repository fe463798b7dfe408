"""Building the wheel: the core is compiled with mypyc, from the same source, where a C compiler is there.

`pip install .` and `make build` come through here; an editable install does not, so that a checkout runs what its files
say. Without a C compiler, or with DUALRAY_PURE=1, the wheel holds Python alone and says so while it is built. The
compiled modules lie beside their sources, which Python then leaves unread.

With DUALRAY_PROFILE=1, as `make build` has it, gcc compiles twice: the second time it knows from the first which ways
the core goes (benchmarks/training.py), keeps those together and inlines across modules. That takes twice as long, and
the environment of the build needs what dualray needs to run.

What is compiled is a copy, in build/core, in which some is spelled out that CPython does at run time (`spell_out`):
mypyc compiles what stands in the source. Constructors of dataclasses are the larger part of it.

A function within a function costs more here than in Python: it and what surrounds it hold each other, and only the
garbage collector parts them. What runs for every task has none.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from copy import copy
from pathlib import Path
from typing import Any, TypeGuard

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # who tests this file needs no more of it
    BuildHookInterface = object

PURE_VARIABLE = "DUALRAY_PURE"
"""Set to 1, the wheel holds Python alone; set to 0, it is compiled or not made at all."""

OPTIMISE_VARIABLE = "DUALRAY_OPTIMISE"
"""The C compiler's -O, from 0 to 3; if not set 2, with which a task waits a tenth less for instructions than with 1."""

PROFILE_VARIABLE = "DUALRAY_PROFILE"
"""Set to 1, the core is compiled with a profile of its own."""

TRAINING = "benchmarks/training.py"
"""What runs while that is taken."""

WATCHED = ("-fprofile-generate",)
GUIDED = ("-fprofile-use", "-fprofile-partial-training", "-Wno-missing-profile", "-flto=auto", "-fno-fat-lto-objects")
"""gcc's options, for compiling and linking; `partial-training`: what did not run is not compiled for size."""

GROUP = "dualray._core"
"""The library that holds all compiled modules; beside each source lies a stub that finds it."""

COMPILED = (
    "dualray/shared/machines/*.py",
    "dualray/shared/machines/*/*.py",
    "dualray/shared/model/*.py",
    "dualray/shared/model/events/*.py",
    "dualray/runtime.py",
    "dualray/user_verbs.py",
    "dualray/shared/core/arguments.py",
    "dualray/shared/core/cluster_queries.py",
    "dualray/shared/core/core_worker.py",
    "dualray/shared/core/execution.py",
    "dualray/shared/core/layout.py",
    "dualray/shared/core/state.py",
    "dualray/shared/core/step.py",
    "dualray/shared/core/submission.py",
    "dualray/shared/core/tasks_in_hand.py",
    "dualray/shared/policies/*.py",
    "dualray/shared/policies/*/*.py",
    "dualray/shared/seeding.py",
    "dualray/shared/core/task_runner.py",
    "dualray/shared/core/values.py",
    "dualray/shared/core/waiting.py",
    "dualray/shared/proof/trace.py",
    "dualray/real/net/loop.py",
    "dualray/real/net/messages.py",
    "dualray/report/summary.py",
    "dualray/sim/kernel/calendar.py",
    "dualray/sim/cluster/cluster.py",
    "dualray/sim/processes/core_worker.py",
    "dualray/sim/kernel/cores.py",
    "dualray/sim/cluster/examination.py",
    "dualray/sim/cluster/fault_actions.py",
    "dualray/sim/cluster/faults.py",
    "dualray/sim/cluster/outages.py",
    "dualray/sim/cluster/run_logs.py",
    "dualray/sim/cluster/run_watch.py",
    "dualray/sim/kernel/fiber_signal.py",
    "dualray/sim/kernel/fibers.py",
    "dualray/sim/processes/pauses.py",
    "dualray/sim/processes/code_process.py",
    "dualray/sim/processes/entering.py",
    "dualray/sim/processes/event_loops.py",
    "dualray/sim/processes/head.py",
    "dualray/sim/processes/host_process.py",
    "dualray/sim/processes/kept_store.py",
    "dualray/sim/modelled/calls.py",
    "dualray/sim/modelled/driver.py",
    "dualray/sim/modelled/processes.py",
    "dualray/sim/modelled/worker.py",
    "dualray/sim/network/conditions.py",
    "dualray/sim/network/flows.py",
    "dualray/sim/network/network.py",
    "dualray/sim/processes/node.py",
    "dualray/sim/cost/rates.py",
    "dualray/sim/processes/runner.py",
    "dualray/sim/processes/tables.py",
    "dualray/sim/cost/task_costs.py",
    "dualray/sim/network/topologies.py",
    "dualray/sim/processes/worker.py",
    "dualray/sim/processes/worker_runtime.py",
    "dualray/sim/processes/working_process.py",
    "dualray/testing/checkers.py",
    "dualray/testing/coverage.py",
)
AS_RAY = "dualray_as_ray.pth"
"""The line that Python reads when it starts, and that looks for DUALRAY_AS_RAY; also of an editable install."""

INTERPRETED = {
    "dualray/shared/model/codec.py": "writes Python at run time",
    "dualray/shared/model/records.py": "makes classes at run time",
    "dualray/shared/model/config.py": "read once",
    "dualray/shared/model/demands.py": "says what users wrote wrong; mypyc would say it first, in its words",
}
"""What COMPILED would take in, and why it is left out; so are packages' own modules."""

EXTENSIBLE = (
    "Cluster",
    "ClusterOfNodes",
    "CoreQueries",
    "CoreState",
    "CoreStep",
    "CoreSubmission",
    "CoreTasks",
    "CoreValues",
    "CoreWaiting",
    "CoreWorker",
    "Due",
    "FallibleCluster",
    "MachineProcess",
    "Placed",
    "Process",
    "TaskRunner",
    "VirtualCluster",
)
"""Compiled classes that have subclasses in modules that are not compiled, or in tests; and so may all policies."""

NEVER_PICKLED = ("/model/events/", "/model/commands.py")
"""Parts of the paths of modules of which no instance is pickled: messages and logs are written by the codec."""

ACYCLIC = ("Channel", "Execution", "Failure", "TaskRecord", "TraceEvent", "Value")
"""Classes of which there are many, whose instances never lead back to themselves: the garbage collector need not look
at them. So are the dataclasses of the model: events, commands, specs."""


def modules(root: Path) -> list[str]:
    """The modules that are compiled, as paths from the root."""
    found = [path.relative_to(root).as_posix() for pattern in COMPILED for path in sorted(root.glob(pattern))]
    return [name for name in found if name not in INTERPRETED and not name.endswith("/__init__.py")]


def why_pure() -> str | None:
    """Why the core cannot be compiled here, or is not to be; None: it can."""
    if os.environ.get(PURE_VARIABLE, "0") not in ("", "0"):
        return f"{PURE_VARIABLE} is set"
    if sys.implementation.name != "cpython":
        return f"mypyc compiles for CPython, and this is {sys.implementation.name}"
    if shutil.which(_compiler()) is None:
        return f"there is no C compiler ({_compiler()})"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return None if header.exists() else f"Python's headers are missing ({header})"


def why_unguided() -> str | None:
    """Why the core is compiled without a profile; None: with one."""
    if os.environ.get(PROFILE_VARIABLE, "0") in ("", "0"):
        return f"{PROFILE_VARIABLE} is not set"
    says = subprocess.run([_compiler(), "-v"], capture_output=True, text=True).stderr
    return None if "gcc version" in says else f"{_compiler()} is not gcc"


def _compiler() -> str:
    words: str = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return words.split(maxsplit=1)[0]


# ---- Spelling out ----------------------------------------------------------------------------------------------------


def spell_out(text: str, name: str) -> str:
    """The module `name`, a path, with what mypyc cannot see written out, each line where it was.

    - A slotted dataclass gets its constructor, and loses `slots`: compiled classes have no other attributes anyway.
      What `dataclasses` writes at run time would stay interpreted. `frozen` is left to mypy, which has checked it.
    - Its annotations are kept as text: the codec reads them (model/codec.py), and mypyc keeps the simplest alone.
    - An instance that is made without its constructor, which saves time in CPython, is made with it: C is faster.
    - Classes that are extended, pickled, or acyclic say so.
    - Constants of the module are final: others are looked up by name, in a dict, wherever they are used.
    """
    tree = ast.parse(text)
    lines = text.split("\n")
    _spell_out_constants(tree, lines)
    at_the_end: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.For | ast.If):
            _spell_out_making(node.body, lines)
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        decorator = next((each for each in node.decorator_list if _is_slotted(each)), None)
        attributes = {
            # Also what is pickled: mypyc would not let pickle make an instance, and forgets the constructor of a class
            # that is "serializable" when Python calls it.
            "allow_interpreted_subclasses": node.name in EXTENSIBLE
            or ("/policies/" in name and not node.bases)
            or (decorator is not None and not any(part in name for part in NEVER_PICKLED)),
            "acyclic": node.name in ACYCLIC or (decorator is not None and "/model/" in name),
        }
        if any(attributes.values()):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            words = ", ".join(f"{attribute}=True" for attribute, is_so in attributes.items() if is_so)
            _fill(lines, first - 2, f"@mypyc_attr({words})")
        if isinstance(decorator, ast.Call):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            texts = {_name(each): ast.unparse(each.annotation) for each in fields}
            at_the_end.append(f'setattr({node.name}, "__annotations__", {texts!r})')
            options = {each.arg for each in decorator.keywords if ast.unparse(each.value) == "True"} - {"slots"}
            options |= {f"{each.arg}=False" for each in decorator.keywords if ast.unparse(each.value) == "False"}
            if all(not isinstance(each.value, ast.Call) or _factory(each) for each in fields):  # else made at run time
                _fill(lines, node.end_lineno or 0, _constructor(fields, is_keyword_only="kw_only" in options))
                if "frozen" in options:  # its constructor assigns
                    options -= {"frozen"}
                    if not any(isinstance(each, ast.FunctionDef) and each.name == "__hash__" for each in node.body):
                        options |= {"unsafe_hash"}
                options |= {"init=False"}
            words = ", ".join(sorted(each if "=" in each else f"{each}=True" for each in options if each))
            lines[decorator.lineno - 1 : decorator.end_lineno] = [
                f"@dataclass({words})",
                *[""] * ((decorator.end_lineno or 0) - decorator.lineno),
            ]
    future = next(index for index, line in enumerate(lines) if line == "from __future__ import annotations")
    lines[future] += "; import typing as _typing"
    _fill(lines, future + 1, "if _typing.TYPE_CHECKING: from mypy_extensions import mypyc_attr")
    return "\n".join([*lines, *at_the_end])


def _fill(lines: list[str], index: int, text: str) -> None:
    """Write into an empty line: of those, two stand around each class."""
    assert not lines[index], f"line {index + 1} is not empty: {lines[index]}"
    lines[index] = text


def _name(field: ast.AnnAssign) -> str:
    assert isinstance(field.target, ast.Name)
    return field.target.id


def _is_slotted(decorator: ast.expr) -> bool:
    return (
        isinstance(decorator, ast.Call)
        and isinstance(decorator.func, ast.Name)
        and decorator.func.id == "dataclass"
        and any(each.arg == "slots" for each in decorator.keywords)
    )


def _constructor(fields: list[ast.AnnAssign], *, is_keyword_only: bool) -> str:
    parameters = []
    values = []
    for field in fields:
        name, annotation, default = _name(field), ast.unparse(field.annotation), field.value
        factory = _factory(field)
        if factory:
            parameters.append(f"{name}: {annotation} | None = None")
            values.append(f"self.{name} = {factory}() if {name} is None else {name}")
        else:
            parameters.append(f"{name}: {annotation}" + (f" = {ast.unparse(default)}" if default else ""))
            values.append(f"self.{name} = {name}")
    star = ["*"] if is_keyword_only and fields else []
    return f"    def __init__({', '.join(['self', *star, *parameters])}) -> None: {'; '.join(values) or 'pass'}"


def _factory(field: ast.AnnAssign) -> str:
    """`dict` of `field(default_factory=dict)`; "": it is something else."""
    made = field.value
    if isinstance(made, ast.Call) and [each.arg for each in made.keywords] == ["default_factory"] and not made.args:
        return ast.unparse(made.keywords[0].value)
    return ""


def _spell_out_constants(tree: ast.Module, lines: list[str]) -> None:
    """`NAME = ...`, in capitals and assigned once, as `NAME: Final = ...`. What is a member of an enum has the enum for
    its type: as a literal, mypy would take an attribute that was compared with it to keep its value through calls."""
    stored = Counter(
        name
        for node in ast.walk(tree)
        for name in (node.names if isinstance(node, ast.Global) else [node.id] if _is_stored(node) else [])
    )

    def final(target: ast.expr, value: ast.expr | None) -> str | None:
        if value is None or not isinstance(target, ast.Name) or stored[target.id] != 1:
            return None
        if not re.fullmatch("_?[A-Z][A-Z0-9_]+", target.id):
            return None
        is_member = isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name) and value.attr.isupper()
        return f"{target.id}: _typing.Final" + (f"[{ast.unparse(value.value)}]" if is_member else "")

    for node in tree.body:
        first = node.lineno - 1
        if isinstance(node, ast.AnnAssign):
            words, annotation = final(node.target, node.value), ast.unparse(node.annotation)
            if words is not None and node.annotation.lineno == node.annotation.end_lineno and "Final" not in annotation:
                rest = lines[first].encode()[node.annotation.end_col_offset :].decode()
                lines[first] = f"{words.partition('[')[0]}[{annotation}]{rest}"
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and node.end_lineno == node.lineno:
                pairs = zip(target.elts, node.value.elts, strict=True)
                spelled = [(final(each, value), ast.unparse(value)) for each, value in pairs]
                if all(words for words, _ in spelled):
                    lines[first] = "; ".join(f"{words} = {value}" for words, value in spelled)
            elif (words := final(target, node.value)) is not None:
                lines[first] = words + lines[first][target.end_col_offset :]


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _spell_out_making(body: list[ast.stmt], lines: list[str]) -> None:
    """`x = new(C)` and the assignments to attributes of `x` that follow, as one call of `C`."""
    for index, made in enumerate(body):
        if not (
            isinstance(made, ast.Assign)
            and isinstance(made.targets[0], ast.Name)
            and isinstance(made.value, ast.Call)
            and isinstance(made.value.func, ast.Name)
            and made.value.func.id in ("new", "_new")
            and isinstance(made.value.args[0], ast.Name)
        ):
            continue
        name, margin, end = made.targets[0].id, " " * made.col_offset, made.lineno - 1
        lines[end] = f"{margin}{name} = {made.value.args[0].id}("
        for follower in body[index + 1 :]:
            target = follower.targets[0] if isinstance(follower, ast.Assign) else None
            if not (
                isinstance(follower, ast.Assign)
                and isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == name
            ):
                break
            first, last = follower.lineno - 1, follower.end_lineno or 0
            lines[first:last] = [
                f"{margin}    {target.attr}={ast.unparse(follower.value)},",
                *[""] * (last - first - 1),
            ]
            end = last - 1
        lines[end] += ")"


# ---- Compiling -------------------------------------------------------------------------------------------------------


def compile_core(root: Path, directory: Path) -> list[tuple[Path, str]]:
    """Compile the core of the tree at `root` in `directory`, which is made anew: each library, with its path in the
    wheel.

    Raises:
        RuntimeError: mypyc, the C compiler or the training has failed; it has said why.
    """
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(root / "dualray", directory / "dualray", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    names = modules(root)
    for name in names:
        path = directory / name
        path.write_text(spell_out(path.read_text(), name))
    # mypyc takes the working directory for the root of what it compiles, and ends the process when it refuses.
    command = [sys.executable, str(Path(__file__).resolve()), *names]
    if subprocess.run(
        command, cwd=directory, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ).returncode:
        raise RuntimeError("mypyc, the C compiler or the training has failed, as is said above")
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = sorted((directory / OUT).rglob(f"*{suffix}"))
    return [(path, path.relative_to(directory / OUT).as_posix()) for path in built]


OUT = "out"
"""Where libraries lie, below the directory that is compiled in."""


def _compile_here(names: list[str]) -> None:
    from mypyc.build import mypycify  # of the build's own environment
    from pybind11.setup_helpers import ParallelCompile

    Path("mypy.ini").write_text(
        "[mypy]\nexplicit_package_bases = True\nnamespace_packages = True\nignore_missing_imports = True\n"
        "follow_imports = silent\ncheck_untyped_defs = True\n"
    )
    extensions = mypycify(
        ["--config-file=mypy.ini", *names],
        opt_level=os.environ.get(OPTIMISE_VARIABLE, "2"),
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
    )
    _free_at_once()
    for extension in extensions:  # where a group's name has dots, mypyc puts its headers elsewhere than it looks
        extension.include_dirs.append(str(Path("build", *GROUP.split(".")[:-1])))
        if os.name == "posix":  # functions that nobody replaces are called directly, not through a table; and a product
            # is rounded before it is added to, as in Python, also by processors that can do both at once
            extension.extra_compile_args += ["-fvisibility=hidden", "-ffp-contract=off"]
    ParallelCompile().install()
    if why_unguided() is None:
        _build(extensions, ".", WATCHED)  # beside its sources
        training = Path(__file__).resolve().parent / TRAINING
        path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
        ran = subprocess.run(
            [sys.executable, str(training)],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if ran.returncode:  # else what its programs print under faults is nobody's news
            sys.exit(f"{ran.stdout}\n{training} has failed")
        _build(extensions, OUT, GUIDED)
    else:
        _build(extensions, OUT, ())


_PUT_OFF = re.compile(
    r"(_dealloc\([^)]*\)\n\{\n)    CPy_TRASHCAN_BEGIN\(self, \w+\)\n((?:    .*\n)*?)    CPy_TRASHCAN_END\(self\)\n"
)
"""The function that frees an instance of an acyclic class. Only others stop the garbage collector first."""


def _free_at_once() -> None:
    """Let no instance of an acyclic class be put off when it is freed.

    CPython puts off what it frees deep inside of other objects. The links of its list lie in front of each object, in
    the header of the garbage collector. An acyclic class has no such header: with what mypyc 2.4 writes, CPython
    overwrites what lies there.
    """
    for path in Path("build").glob("__native_*.c"):
        text = path.read_text()
        freed, count = _PUT_OFF.subn(r"\1\2", text)
        if count:
            path.write_text(freed)


def _build(extensions: list[Any], directory: str, options: tuple[str, ...]) -> None:
    from setuptools import Distribution

    told = [copy(each) for each in extensions]
    for extension in told:
        extension.extra_compile_args = [*extension.extra_compile_args, *options]
        extension.extra_link_args = [*extension.extra_link_args, *extension.extra_compile_args]
    command: Any = Distribution({"name": "dualray", "ext_modules": told}).get_command_obj("build_ext")
    command.build_lib, command.build_temp, command.parallel, command.force = directory, "temp", os.cpu_count(), True
    command.ensure_finalized()
    command.run()


# ---- The hook --------------------------------------------------------------------------------------------------------


class CoreBuildHook(BuildHookInterface):
    """Puts the compiled core into the wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What compiling needs, where it is done."""
        if why_pure():
            return []
        training = [] if why_unguided() else self.metadata.core.dependencies
        return ["mypy[mypyc]~=2.4", "pybind11>=2.13", "setuptools>=70", *training]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is packed; `version` is "standard" or "editable"."""
        if version != "standard":
            build_data["force_include_editable"][str(Path(self.root, AS_RAY))] = AS_RAY
            return
        root, why = Path(self.root), why_pure()
        libraries: list[tuple[Path, str]] = []
        if why is None:
            try:
                libraries = compile_core(root, root / "build" / "core")
            except RuntimeError as error:
                why = str(error)
        if why is not None:
            if os.environ.get(PURE_VARIABLE) == "0":
                raise RuntimeError(f"dualray: the core is not compiled, and {PURE_VARIABLE}=0 asks for it: {why}")
            self.app.display_warning(f"dualray: the core stays Python, and tasks cost twice as much, for {why}")
            return
        for path, name in libraries:
            build_data["force_include"][str(path)] = name
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    _compile_here(sys.argv[1:])
