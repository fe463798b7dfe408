"""The plan of a dataset: the source of its rows, and the steps that they pass. Nothing runs yet.

A plan is a source (a list of inputs, each read by one task, or a block that exists) and steps. Neighbouring steps that
look at one block at a time are fused into one task; an exchange needs all blocks before it gives one; a limit ends
reading early. Plans are immutable: each method of Dataset makes a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dualray.data import blocks
from dualray.object_ref import ObjectRef

Transform = Callable[[Iterator[pa.Table]], Iterator[pa.Table]]
READING = "Read"
"""The name of the step that only carries the options of the tasks that read."""
SchemaAfter = Callable[[pa.Schema], pa.Schema | None]


@dataclass(frozen=True, slots=True)
class Numbered:
    """A transform that needs the number of the block."""

    of_block: Callable[[int], Transform]


@dataclass(frozen=True, slots=True)
class Drawing:
    """A transform that draws random numbers: other ones each time that the plan is executed."""

    begin: Callable[[], Transform | Numbered]


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A part of the source that one task reads.

    rows: how many rows, where that is known without reading.
    size_bytes: about how much memory they take; 0: not known.
    files: where they are.
    schema: names and types of the columns, where they are known without reading.
    """

    function: Callable[[], pa.Table]
    rows: int | None = None
    size_bytes: int = 0
    files: tuple[str, ...] = ()
    schema: pa.Schema | None = None

    def load(self) -> pa.Table:
        """Its rows."""
        return self.function()


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Rows `start` to `stop` of a block: of a table in this process, or of one in the object store."""

    block: pa.Table | ObjectRef[Any]
    start: int
    stop: int
    size_bytes: int
    files: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows."""
        return self.stop - self.start

    def cut(self, start: int, stop: int) -> Held:
        """Some of its rows, counted from its first one."""
        size = self.size_bytes * (stop - start) // max(1, self.rows)
        return Held(
            block=self.block, start=self.start + start, stop=self.start + stop, size_bytes=size, files=self.files
        )


Part = Read | Held


@dataclass(frozen=True, slots=True)
class Bundle:
    """Blocks that one task works at."""

    parts: tuple[Part, ...]

    @property
    def size_bytes(self) -> int:
        """About how much memory their rows take."""
        return sum(part.size_bytes for part in self.parts)

    @property
    def files(self) -> tuple[str, ...]:
        """Where their rows are."""
        return tuple(dict.fromkeys(file for part in self.parts for file in part.files))


Input = Read | Held | Bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A step that looks at one block at a time.

    keeps_rows: it gives as many rows as it gets.
    needs: resources of its tasks, as options of a remote function.
    tasks_max: most of its tasks at a time; None: as many as the context says.
    rows_min: a task of the step gets so many rows, if there are, of several blocks where one has fewer.
    counts_as_keeping: when blocks are joined for `rows_min`, it counts as a step that gives as many rows as it gets.
    schema_after: what becomes of a schema; None: known only when the step runs.
    """

    name: str
    transform: Transform | Numbered | Drawing
    keeps_rows: bool = False
    tasks_max: int | None = None
    rows_min: int | None = None
    counts_as_keeping: bool = False
    needs: Mapping[str, Any] = field(default_factory=dict)
    schema_after: SchemaAfter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorMap:
    """A step that runs in a pool of actors, each with an instance of a user's class.

    size, size_max: the pool has `size_max` actors, but no more than the cluster has CPUs, and at least `size`.
    rows_min: as of a `Map`.
    """

    name: str
    make: Callable[[], Transform]
    size: int
    size_max: int
    keeps_rows: bool = False
    rows_min: int | None = None
    needs: Mapping[str, Any] = field(default_factory=dict)
    schema_after: SchemaAfter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """The first `count` rows."""

    count: int

    @property
    def name(self) -> str:
        """What people call it."""
        return f"Limit({self.count})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A step that needs all blocks. `run` takes them, and about how many there will be."""

    name: str
    run: Callable[[Iterator[Held], int], Iterator[Held]]
    keeps_rows: bool = True
    outputs: int | None = None
    schema_after: SchemaAfter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    """The blocks so far, and then those of other plans."""

    others: tuple[Plan, ...]

    @property
    def name(self) -> str:
        """What people call it."""
        return f"Union({len(self.others) + 1})"


Step = Map | ActorMap | Limit | Exchange | Union


@dataclass(frozen=True, slots=True)
class Plan:
    """A source and what happens to it."""

    source: tuple[Part, ...]
    steps: tuple[Step, ...] = ()
    name: str = "source"

    def then(self, step: Step) -> Plan:
        """This plan, and one step more."""
        return Plan(self.source, (*self.steps, step), self.name)

    @property
    def blocks(self) -> int:
        """About how many blocks it makes."""
        count = len(self.source)
        for step in self.steps:
            if isinstance(step, Exchange) and step.outputs is not None:
                count = step.outputs
            elif isinstance(step, Union):
                count += sum(other.blocks for other in step.others)
        return count

    @property
    def rows(self) -> int | None:
        """How many rows it makes, where that is known without running it."""
        total: int | None = 0
        for part in self.source:
            total = None if total is None or part.rows is None else total + part.rows
        for step in self.steps:
            match step:
                case Limit(count=count):
                    total = None if total is None else min(total, count)
                case Map() | Exchange() | ActorMap():
                    total = total if step.keeps_rows else None
                case Union(others=others):
                    for other in others:
                        total = None if total is None or other.rows is None else total + other.rows
        return total

    @property
    def maps_alone(self) -> list[Transform] | None:
        """Its transforms, if it has no other steps: then any process can make any of its blocks by itself."""
        transforms = [step.transform for step in self.steps if isinstance(step, Map)]
        plain = [each for each in transforms if not isinstance(each, Numbered | Drawing)]
        return plain if len(plain) == len(self.steps) else None

    @property
    def knows_rows_of_blocks(self) -> bool:
        """Whether the number of rows of each block is known without running it."""
        return all(part.rows is not None for part in self.source) and all(
            isinstance(step, Map) and step.keeps_rows for step in self.steps
        )

    def __str__(self) -> str:
        return " -> ".join([self.name, *(step.name for step in self.steps)])


def kept(schema: pa.Schema) -> pa.Schema:
    """The `schema_after` of a step that leaves the columns as they are."""
    return schema


def chained(transforms: Iterable[Transform]) -> Transform:
    """Several transforms as one."""
    steps = list(transforms)

    def run(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for step in steps:
            tables = step(tables)
        return tables

    return run


def fused(transforms: Iterable[Transform | Numbered]) -> Transform | Numbered:
    """Several transforms as one, which needs the number of the block if one of them does."""
    steps = list(transforms)
    if not any(isinstance(step, Numbered) for step in steps):
        return chained(step for step in steps if not isinstance(step, Numbered))
    return Numbered(lambda number: chained(of_block(step, number) for step in steps))


def begun(transform: Transform | Numbered | Drawing) -> Transform | Numbered:
    """The transform for an execution that begins."""
    return transform.begin() if isinstance(transform, Drawing) else transform


def of_block(transform: Transform | Numbered, number: int) -> Transform:
    """The transform for the block with this number."""
    return transform.of_block(number) if isinstance(transform, Numbered) else transform


def block_of(transform: Transform, *tables: pa.Table) -> pa.Table:
    """What blocks become: one block."""
    return blocks.compacted(blocks.joined(transform(iter(tables))))
