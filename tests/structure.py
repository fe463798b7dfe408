"""The structure of the code, measured: `python -m tests.structure` prints it, and exits with 1 above a limit.

Sizes are those of the files of dualray/ and tests/. Imports are all that a module has, also inside functions and for
the type checker alone. tests/test_structure.py holds the same limits.
"""

from __future__ import annotations

import ast
import graphlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
MODULE_LINES_MAX = 660
CLASS_METHODS_MAX = 40
FUNCTION_LINES_MAX = 60
LISTED = 10
"""The largest of each kind that are printed."""

EXCEPTIONS: dict[str, str] = {
    "dualray/api.py:init": "28 arguments, each documented",
    "dualray/classic/verbs.py:init": "the arguments of 2017, each documented",
    "dualray/cli/cluster.py:start_command": "15 options, each with its help",
    "dualray/cli/rays/nodes.py:start_command": "17 options, each with its help",
    "dualray/cluster_utils.py:add_node": "16 arguments, each documented",
    "dualray/runtime.py:CoreVerbs": "the seam of real and sim: one line a method, no code",
    "dualray/cli/whatif.py:predict_command": "19 options, each with its help",
    "dualray/whatif/predict.py:predict": "12 arguments, each documented",
}
"""What may be larger, as `sizes` names it, and why. One that is not larger any more is an error too."""


@dataclass(frozen=True, slots=True, order=True)
class Size:
    """How large one thing is: a module or function in lines, a class in methods of its own."""

    amount: int
    name: str


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything, by kind, the largest first."""

    modules: list[Size]
    classes: list[Size]
    functions: list[Size]

    def above(self) -> list[Size]:
        """What is above its limit."""
        kinds = ((self.modules, MODULE_LINES_MAX), (self.classes, CLASS_METHODS_MAX))
        found = [size for sizes, most in kinds for size in sizes if size.amount > most]
        return found + [size for size in self.functions if size.amount > FUNCTION_LINES_MAX]


def python_files() -> Iterator[Path]:
    """The files that are measured, in order."""
    for directory in ("dualray", "tests"):
        yield from sorted((ROOT / directory).rglob("*.py"))


def sizes() -> Sizes:
    """The sizes of all modules, classes and functions."""
    found = Sizes([], [], [])
    for path in python_files():
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        found.modules.append(Size(text.count("\n"), name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
                found.classes.append(Size(methods, f"{name}:{node.name}"))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                found.functions.append(Size(lines, f"{name}:{node.name}"))
    for kind in (found.modules, found.classes, found.functions):
        kind.sort(reverse=True)
    return found


def imports() -> dict[str, set[str]]:
    """For each module of the package, the modules of the package that it imports."""
    graph = grimp.build_graph("dualray", cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in sorted(graph.modules)}


def arrows(imported: Mapping[str, set[str]]) -> Counter[tuple[str, str]]:
    """How many imports lead from one folder to another. A module that lies beside folders stands for itself."""
    parents = Counter(module.rpartition(".")[0] for module in imported)
    packages = {module for module in imported if parents[module]}
    with_folders = {package.rpartition(".")[0] for package in packages}

    def folder_of(module: str) -> str:
        parent = module.rpartition(".")[0]
        return module if module in packages or parent in with_folders else parent

    found: Counter[tuple[str, str]] = Counter()
    for module, targets in imported.items():
        for target in targets:
            pair = folder_of(module), folder_of(target)
            if pair[0] != pair[1]:
                found[pair] += 1
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """One circle of a graph, its first node repeated at the end; empty: there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def main() -> int:
    """Print the structure; 1: something is above its limit, or there is a circle."""
    measured, imported = sizes(), imports()
    for title, kind, most in (
        ("lines a module", measured.modules, MODULE_LINES_MAX),
        ("methods a class", measured.classes, CLASS_METHODS_MAX),
        ("lines a function", measured.functions, FUNCTION_LINES_MAX),
    ):
        print(f"{title}: {len(kind):,}, at most {most}")
        for size in kind[:LISTED]:
            reason = EXCEPTIONS.get(size.name)
            print(f"  {size.amount:5,}  {size.name}{f'  (exempt: {reason})' if reason else ''}")
    between = arrows(imported)
    print(f"arrows between folders: {len(between)}, with {between.total():,} imports; those with most imports:")
    for (source, target), count in between.most_common(LISTED):
        print(f"  {count:5,}  {source} -> {target}")
    folders: dict[str, set[str]] = {}
    for source, target in between:
        folders.setdefault(source, set()).add(target)
    circles = [found for found in (circle(imported), circle(folders)) if found]
    for found in circles:
        print(f"circle: {' -> '.join(found)}")
    if not circles:
        print(f"circles: none, among {len(imported)} modules and among folders")
    above = [size for size in measured.above() if size.name not in EXCEPTIONS]
    for size in above:
        print(f"above its limit: {size.amount:,} {size.name}")
    return int(bool(circles or above))


if __name__ == "__main__":
    sys.exit(main())
