"""The seed documents' blocks of code, and the programs that they make.

`index.yaml` names every block, by the lines that it has in its document. A program is some blocks in order, with
nothing changed but what CHANGES lists, and a check of its results below.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
DOCUMENTS = {
    "000": "Using Ray with TensorFlow (2017)",
    "001": "Using Ray with TensorFlow, in Chinese (2017)",
    "002": "The documentation of Ray (2017)",
    "003": "Distributed training with TensorFlow and Keras, in Chinese (today)",
}

CHANGES = {
    "import ray": "import dualray.classic as ray",
    "import tensorflow as tf": "import dualray.experimental.tf1 as tf",
    "from tensorflow.examples.tutorials.mnist import input_data": "from examples import input_data",
    "import gym": "from examples import gym_envs as gym",
}
"""Lines that are replaced, whole: all that a program of the documents of 2017 needs changed."""

CHANGES_TODAY = {
    "import ray": "import dualray as ray",
    "from ray import train": "from dualray import train",
    "from ray.train import ScalingConfig": "from dualray.train import ScalingConfig",
    "from ray.train import Checkpoint, ScalingConfig": "from dualray.train import Checkpoint, ScalingConfig",
    "from ray.train.tensorflow import TensorflowTrainer": "from dualray.train.tensorflow import TensorflowTrainer",
    "from ray.train.tensorflow import prepare_dataset_shard": (
        "from dualray.train.tensorflow import prepare_dataset_shard"
    ),
    "from ray.train.tensorflow.keras import ReportCheckpointCallback": (
        "from dualray.train.tensorflow.keras import ReportCheckpointCallback"
    ),
}
"""And of today's."""

WHY = {
    "import ray": "the program imports dualray instead of Ray",
    "import tensorflow as tf": "TensorFlow 2 runs operations eagerly, and `tensorflow.compat.v1` runs graphs",
    "from tensorflow.examples.tutorials.mnist import input_data": "TensorFlow 2 has no module `tensorflow.examples`",
    "import gym": "gym is now called gymnasium, and ale-py registers the Atari games",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some lines of a document. `fragment`: why they are no program. `waiting`: for what."""

    doc: str
    lines: tuple[int, int]
    indent: str = ""
    fragment: str = ""
    waiting: str = ""

    @property
    def name(self) -> str:
        return f"{self.doc}:{self.lines[0]}"

    @property
    def text(self) -> list[str]:
        """As they stand in the document."""
        return document(self.doc)[self.lines[0] - 1 : self.lines[1]]

    @property
    def source(self) -> str:
        """With their indentation."""
        if not self.indent:
            return textwrap.dedent("\n".join(self.text)) + "\n"
        return "".join(
            f"{'    ' * int(depth)}{line.strip()}\n" for depth, line in zip(self.indent, self.text, strict=True)
        )


def changes_of(doc: str) -> Mapping[str, str]:
    """What is replaced in the blocks of a document."""
    return CHANGES_TODAY if doc == "003" else CHANGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Blocks that are run together. `joins`: where the document says `<redis-address>`, a cluster is there."""

    name: str
    blocks: tuple[str, ...]
    before: str = ""
    check: str = ""
    num_cpus: int = 2
    num_gpus: int = 0
    object_store_memory: str = ""
    joins: bool = False
    slow: bool = False

    def source(self, known: Mapping[str, Block], address: str = "") -> str:
        """The program's text."""
        parts = [self.before] if self.before else []
        for name in self.blocks:
            source = known[name].source
            source = source.replace("<redis-address>", address)
            for old, new in changes_of(known[name].doc).items():
                source = re.sub(rf"^(\s*){re.escape(old)}$", rf"\g<1>{new}", source, flags=re.MULTILINE)
            parts += [source, promised_values(source)]
        return "\n".join([*parts, self.check, "print('the program has come to its end')\n"])


def promised_values(source: str) -> str:
    """An assertion for each expression of a block whose comment says what it gives: `ray.get(x_id)  # 3`."""
    lines = source.splitlines()
    found = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Expr) and statement.end_lineno is not None:
            _, _, comment = lines[statement.end_lineno - 1].partition(" # ")
            try:
                value = ast.literal_eval(comment.strip())
            except (SyntaxError, ValueError):
                continue
            found.append(f"assert {ast.unparse(statement.value)} == {value!r}")
    return "\n".join(found)


@cache
def document(name: str) -> list[str]:
    """The lines of a document."""
    return (HERE / f"{name}.txt").read_text().split("\n")


@cache
def _index() -> dict[str, Any]:
    index: dict[str, Any] = yaml.safe_load((HERE / "index.yaml").read_text())
    return index


def blocks() -> dict[str, Block]:
    """Every block, by name."""
    found = [Block(**entry | {"lines": tuple(entry["lines"])}) for entry in _index()["blocks"]]
    return {block.name: block for block in found}


def programs() -> list[Program]:
    """Every program."""
    return [Program(**entry | {"blocks": tuple(entry["blocks"])}) for entry in _index()["programs"]]


def commands() -> list[dict[str, Any]]:
    """Lines for a shell that have something to do with us, and what."""
    found: list[dict[str, Any]] = _index()["commands"]
    return found


def table() -> str:
    """The part of README.md below its head: a row for each block."""
    running: dict[str, list[str]] = {}
    for program in programs():
        for name in program.blocks:
            running.setdefault(name, []).append(program.name)
    out = ["## What is changed", "", "| line | becomes | because |", "|---|---|---|"]
    out += [f"| `{old}` | `{new}` | {WHY[old]} |" for old, new in CHANGES.items()]
    out += ["", "In document 003 (Ray Train), `tests/test_seeds.py` changes only the imports of Ray:", ""]
    out += ["| line | becomes |", "|---|---|"]
    out += [f"| `{old}` | `{new}` |" for old, new in CHANGES_TODAY.items()]
    for doc, title in DOCUMENTS.items():
        out += ["", f"## {doc}: {title}", "", "| lines | first line | result |", "|---|---|---|"]
        rows = []
        for block in blocks().values():
            if block.doc == doc:
                if block.name in running:
                    verdict = f"runs: {', '.join(running[block.name])}"
                else:
                    verdict = f"fragment: {block.fragment}" if block.fragment else f"does not run yet: {block.waiting}"
                first = next(line.strip() for line in block.text if line.strip())
                rows.append((block.lines, f"`{first[:60]}`", verdict))
        for command in commands():
            if command["doc"] == doc:
                first = document(doc)[command["lines"][0] - 1].strip()
                rows.append((tuple(command["lines"]), f"`{first[:60]}`", f"command: {command['why']}"))
        out += [f"| {a}-{b} | {first} | {verdict} |" for (a, b), first, verdict in sorted(rows)]
    return "\n".join(out) + "\n"
