"""Sources and targets of other systems: a program or library derives a class, and tasks read or write with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dualray.data import blocks

__all__ = ["BlockMetadata", "Datasink", "Datasource", "ReadTask", "TaskContext", "WriteResult"]

Block = Any
"""An Arrow table or a pandas DataFrame."""


@dataclass(frozen=True)
class BlockMetadata:
    """A `Datasource` describes a block with this before a task reads the block.

    Attributes:
        num_rows: the number of rows. None: not known.
        size_bytes: about how much memory the rows take. None: not known.
        exec_stats, task_exec_stats: accepted as in Ray, and without effect.
        input_files: the files of the rows.
    """

    num_rows: int | None = None
    size_bytes: int | None = None
    exec_stats: Any = None
    task_exec_stats: Any = None
    input_files: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """A block in the object store.

    Attributes:
        ref: the reference to the block.
        metadata: its rows and bytes.
    """

    ref: Any
    metadata: BlockMetadata


@dataclass(frozen=True, slots=True)
class RefBundle:
    """Neighbouring blocks in the object store; from `Dataset.iter_internal_ref_bundles`."""

    blocks: tuple[BlockEntry, ...]

    @property
    def block_refs(self) -> list[Any]:
        """The references to the blocks."""
        return [entry.ref for entry in self.blocks]

    def num_rows(self) -> int:
        """Return the number of rows."""
        return sum(entry.metadata.num_rows or 0 for entry in self.blocks)

    def size_bytes(self) -> int:
        """Return the bytes of memory that the rows take."""
        return sum(entry.metadata.size_bytes or 0 for entry in self.blocks)


class ReadTask:
    """A part of a source, which one task reads. The task calls `read_fn`, which returns blocks.

    A block is an Arrow table or a pandas DataFrame.
    """

    def __init__(
        self,
        read_fn: Callable[[], Iterable[Block]],
        metadata: BlockMetadata,
        schema: Any = None,
        per_task_row_limit: int | None = None,
    ) -> None:
        self.read_fn = read_fn
        self.metadata = metadata
        self.schema = schema
        self.per_task_row_limit = per_task_row_limit

    def __call__(self) -> Iterator[Block]:
        """Read the blocks, up to `per_task_row_limit` rows."""
        left = self.per_task_row_limit
        for block in self.read_fn():
            if left is None:
                yield block
                continue
            yield block[:left]
            left -= min(left, len(block))
            if left == 0:
                return

    def table(self) -> pa.Table:
        """Read the blocks as one Arrow table."""
        return blocks.joined(blocks.table_of_batch(block, "a ReadTask's function") for block in self())


class Datasource:
    """A source of rows. Derive a class with `get_read_tasks`, and give an instance to `read_datasource`."""

    def get_read_tasks(self, parallelism: int) -> list[ReadTask]:
        """Return the parts of the source, about `parallelism` many. The driver calls this method once."""
        raise NotImplementedError

    def estimate_inmemory_data_size(self) -> int | None:
        """Return about how much memory all rows take, in bytes. None: not known."""
        return None

    def get_name(self) -> str:
        """Return the name of the source, for errors and `repr`."""
        return _short_name(self, "Datasource")

    @property
    def supports_distributed_reads(self) -> bool:
        """Whether tasks on all nodes can read the source. If not, tasks on the driver's node read it."""
        return True


@dataclass(frozen=True)
class TaskContext:
    """`Datasink.write` gets this description of its task.

    Attributes:
        task_idx: the number of the task, from 0.
        op_name: the name of the target.
        kwargs: empty, as dualray passes no options.
    """

    task_idx: int
    op_name: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class WriteResult:
    """`Datasink.on_write_complete` gets this sum of all tasks of `write_datasink`.

    Attributes:
        num_rows: the number of rows.
        size_bytes: the memory that the rows took.
        write_returns: what each call of `Datasink.write` returned, in the order of the rows.
    """

    num_rows: int
    size_bytes: int
    write_returns: list[Any]


class Datasink:
    """A target of rows. Derive a class with `write`, and give an instance to `Dataset.write_datasink`.

    Tasks get copies of the instance. If a worker or node dies, its task runs again and writes again. So write to a
    temporary place in `write`, and publish the result in `on_write_complete`.
    """

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Prepare the target. The driver calls this method before the first task, with the schema of the rows."""

    def write(self, blocks: Iterable[pa.Table], ctx: TaskContext) -> Any:
        """Write blocks. A task calls this method, and the driver gets its result."""
        raise NotImplementedError

    def on_write_complete(self, write_result: WriteResult) -> None:
        """Finish. The driver calls this method when all tasks have written."""

    def on_write_failed(self, error: Exception) -> None:
        """Clean up. The driver calls this method when a task or another method fails, before the error is raised."""

    def get_name(self) -> str:
        """Return the name of the target, for the names of tasks."""
        return _short_name(self, "Datasink")

    @property
    def supports_distributed_writes(self) -> bool:
        """Whether tasks on all nodes can write. If not, tasks on the driver's node write."""
        return True

    @property
    def min_rows_per_write(self) -> int | None:
        """The fewest rows of a task, except the last one. None: one block."""
        return None


def _short_name(value: object, ending: str) -> str:
    return type(value).__name__.lstrip("_").removesuffix(ending)
