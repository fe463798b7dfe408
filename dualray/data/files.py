"""Sources of datasets that are files.

dualray cuts files into parts that one task reads: of Parquet, the row groups of one block; of the others, one file.
The nodes must see the paths. A directory stands for the files in it, and a pattern for the files that match.
A directory with a name such as `x=1` gives its files a column `x` with the text "1".
"""

from __future__ import annotations

import glob
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.orc
import pyarrow.parquet

from dualray.data import blocks
from dualray.data.compute import is_count
from dualray.data.context import DataContext
from dualray.data.dataset import Dataset
from dualray.data.mapping import with_column
from dualray.data.plan import READING, Map, Plan, Read, kept
from dualray.data.planned import check_filesystem, local_path

Paths = str | Path | Sequence[str | Path]

_IMAGES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
_TARGET_DEFAULT = 128 * 1024 * 1024
_NEEDS = ("num_cpus", "num_gpus", "memory", "resources", "accelerator_type", "runtime_env", "label_selector")
_WITHOUT_EFFECT = ("arrow_open_stream_args", "arrow_open_file_args", "max_calls", "fallback_strategy", "catalog")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the arguments that all functions share say.

    files: the files.
    names_files: add a column `path`.
    wanted: about how many blocks to make.
    needs: options of the tasks.
    tasks_max: most tasks at a time.
    is_partitioned: directories such as `x=1` give columns.
    """

    files: list[str]
    names_files: bool
    wanted: int | None
    needs: Mapping[str, Any]
    tasks_max: int | None
    is_partitioned: bool

    def dataset(self, parts: Iterable[Read], name: str) -> Dataset:
        """The dataset of what is read."""
        made = Dataset(Plan(tuple(parts), (), name))
        if self.needs or self.tasks_max is not None:
            step = Map(
                name=READING,
                transform=_same,
                keeps_rows=True,
                needs=self.needs,
                tasks_max=self.tasks_max,
                schema_after=kept,
            )
            made = made._then(step)
        return made

    def extended(self, table: pa.Table, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """The table of a file, with the columns that its path gives."""
        if self.is_partitioned:
            for name, value in _partition(path).items():
                if name not in table.column_names and (columns is None or name in columns):
                    table = table.append_column(name, pa.repeat(pa.scalar(value), table.num_rows))
        return with_column(table, "path", pa.repeat(pa.scalar(path), table.num_rows)) if self.names_files else table


def asked_of(paths: Paths, endings: tuple[str, ...] | None, options: dict[str, Any], name: str) -> Asked:
    """Take the arguments that all functions share out of `options`.

    Raises:
        FileNotFoundError: a path, or a pattern, stands for no file.
        ValueError: an argument has a wrong value.
        TypeError: an argument of Ray's would change what is read, and dualray does not have it.
    """
    for each in ("partition_filter", "include_row_hash", "tensor_column_schema", "skip_paths"):
        if options.pop(each, None):
            raise TypeError(
                f"{name}: dualray does not have the argument {each}; filter the rows, or give only the paths that "
                "you need"
            )
    check_filesystem(options.pop("filesystem", None))
    given = options.pop("file_extensions", None)
    endings = endings if given is None else tuple(f".{each.lstrip('.')}" for each in given)
    files = _files(paths, endings, is_lenient=bool(options.pop("ignore_missing_paths", False)))
    shuffle = options.pop("shuffle", None)
    if shuffle is not None:
        seed = getattr(shuffle, "seed", None)
        order = np.random.default_rng(DataContext.get_current().shuffle_seed if seed is None else seed)
        files = [files[number] for number in order.permutation(len(files))]
    for each in _WITHOUT_EFFECT:
        options.pop(each, None)
    needs = needs_of(options)
    return Asked(
        files=files,
        names_files=bool(options.pop("include_paths", False)),
        wanted=blocks_wanted(options.pop("override_num_blocks", None), options.pop("parallelism", -1)),
        needs=needs,
        tasks_max=options.pop("concurrency", None),
        is_partitioned=options.pop("partitioning", "hive") is not None,
    )


def needs_of(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of tasks out of `options`."""
    needs = {each: options.pop(each) for each in _NEEDS if options.get(each) is not None}
    for each in _NEEDS:
        options.pop(each, None)
    return needs | (options.pop("ray_remote_args", None) or {})


def read_parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    filter: Any = None,  # noqa: A002 - pyarrow's and Ray's name
    **options: Any,
) -> Dataset:
    """Return a dataset of the rows of Parquet files.

    Args:
        paths: files, directories or patterns that every node sees.
        columns: the columns to read. Default: all.
        filter: an expression of `pyarrow.compute`. Row groups in which no row can meet it are not read.
        options: `override_num_blocks`, about how many blocks to make (default: blocks of `target_max_block_size`);
            `include_paths`, which adds a column `path`; `file_extensions`; `ignore_missing_paths`; `shuffle="files"`;
            `concurrency`, most tasks at a time; and options of the tasks: num_cpus, num_gpus, resources ...
    """
    asked = asked_of(paths, (".parquet",), options, "read_parquet")
    none_left(options, "read_parquet")
    groups: list[tuple[str, int, int, int]] = []  # file, row group, rows, bytes
    schemas: dict[str, pa.Schema] = {}
    wanted = None if columns is None else set(columns)
    for path in asked.files:
        with pa.parquet.ParquetFile(path) as file:
            there = [*file.schema_arrow.names, *(_partition(path) if asked.is_partitioned else ())]
            _check_columns(path, there, columns)
            schemas[path] = file.schema_arrow
            for number in range(file.metadata.num_row_groups):
                group = file.metadata.row_group(number)
                chunks = [group.column(index) for index in range(group.num_columns)]
                size = sum(
                    chunk.total_uncompressed_size
                    for chunk in chunks
                    if wanted is None or chunk.path_in_schema.partition(".")[0] in wanted
                )
                groups.append((path, number, group.num_rows, size))
    total = sum(size for *_, size in groups)
    target = target_size() if asked.wanted is None else max(1, total // asked.wanted)
    parts: list[Read] = []
    gathered: list[tuple[str, int, int, int]] = []
    for group in groups:
        if gathered and (group[0] != gathered[0][0] or sum(entry[3] for entry in gathered) + group[3] > target):
            parts.append(_read_groups(gathered, columns, filter, asked, schemas))
            gathered = []
        gathered.append(group)
    if gathered:
        parts.append(_read_groups(gathered, columns, filter, asked, schemas))
    return asked.dataset(parts, "read_parquet")


def _read_groups(
    groups: list[tuple[str, int, int, int]],
    columns: Sequence[str] | None,
    wanted: Any,
    asked: Asked,
    schemas: Mapping[str, pa.Schema],
) -> Read:
    path, numbers = groups[0][0], [number for _, number, _, _ in groups]
    chosen = None if columns is None else list(columns)

    def read() -> pa.Table:
        with pa.parquet.ParquetFile(path, memory_map=False) as file:
            needed = chosen
            if wanted is not None:
                needed = None  # the filter may look at columns that are not wanted
            table = file.read_row_groups(numbers, columns=needed, use_threads=False)
        return complete(table if wanted is None else table.filter(wanted))

    def complete(table: pa.Table) -> pa.Table:
        if chosen is not None:
            table = table.select([name for name in chosen if name in table.column_names])
        return asked.extended(table, path, chosen)

    rows = sum(rows for _, _, rows, _ in groups) if wanted is None else None
    schema = complete(schemas[path].empty_table()).schema
    size_bytes = sum(size for *_, size in groups)
    return Read(function=read, rows=rows, size_bytes=size_bytes, files=(path,), schema=schema)


def read_csv(paths: Paths, **options: Any) -> Dataset:
    """Return a dataset of the rows of CSV files, a block for each file.

    Args:
        paths: as for `read_parquet`.
        options: those of `read_parquet`; others go to `pyarrow.csv.read_csv`.
    """
    return whole_files(paths, None, options, lambda path, more: pa.csv.read_csv(path, **more), "read_csv")


def read_json(paths: Paths, *, lines: bool = False, **options: Any) -> Dataset:
    """Return a dataset of files with a JSON object in each line, or with one JSON list, a block for each file.

    Args:
        paths: as for `read_parquet`.
        lines: accepted as in Ray, and without effect: dualray looks at the file.
        options: those of `read_parquet`; others go to `pyarrow.json.read_json`.
    """
    endings = tuple(f".{kind}{packed}" for kind in ("json", "jsonl") for packed in ("", ".gz", ".br", ".zst", ".lz4"))
    return whole_files(paths, endings, options, _json_table, "read_json")


def read_text(paths: Paths, *, encoding: str = "utf-8", drop_empty_lines: bool = True, **options: Any) -> Dataset:
    """Return a dataset of the lines of text files, in a column `text`, a block for each file.

    Args:
        paths: as for `read_parquet`.
        encoding: the encoding of the files.
        drop_empty_lines: leave out lines that are empty, or that have only spaces.
        options: those of `read_parquet`.
    """

    def read(path: str, _more: Mapping[str, Any]) -> pa.Table:
        lines = Path(path).read_bytes().decode(encoding).splitlines()
        return pa.table(
            {"text": pa.array([line for line in lines if line.strip() or not drop_empty_lines], pa.string())}
        )

    return whole_files(paths, None, options, read, "read_text", takes_no_more=True)


def read_binary_files(paths: Paths, **options: Any) -> Dataset:
    """Return a dataset of whole files, in a column `bytes`, a row for each file; arguments as for `read_parquet`."""

    def read(path: str, _more: Mapping[str, Any]) -> pa.Table:
        return pa.table({"bytes": pa.array([Path(path).read_bytes()], pa.binary())})

    return whole_files(paths, None, options, read, "read_binary_files", takes_no_more=True)


def read_numpy(paths: Paths, **options: Any) -> Dataset:
    """Return a dataset of `.npy` files, whose first dimension is the rows, in a column `data`.

    Args:
        paths: as for `read_parquet`.
        options: those of `read_parquet`; others go to `numpy.load`.
    """

    def read(path: str, more: Mapping[str, Any]) -> pa.Table:
        return pa.table({"data": blocks.column_of(np.atleast_1d(np.load(path, **more)))})

    return whole_files(paths, (".npy",), options, read, "read_numpy")


def read_images(
    paths: Paths, *, size: tuple[int, int] | None = None, mode: str | None = None, **options: Any
) -> Dataset:
    """Return a dataset of images, arrays in a column `image`, a row for each file; Pillow must be installed.

    Args:
        paths: as for `read_parquet`.
        size: height and width to which each image is scaled.
        mode: Pillow's mode to which each image is converted, such as "RGB" or "L".
        options: those of `read_parquet`.
    """

    def read(path: str, _more: Mapping[str, Any]) -> pa.Table:
        from PIL import Image  # noqa: PLC0415 - only programs with images pay for it

        with Image.open(path) as opened:
            image = opened if size is None else opened.resize((size[1], size[0]), resample=Image.Resampling.BILINEAR)
            pixels = np.asarray(image if mode is None else image.convert(mode))
        return pa.table({"image": blocks.column_of(pixels[np.newaxis])})

    return whole_files(paths, _IMAGES, options, read, "read_images", takes_no_more=True)


def read_orc(paths: Paths, *, columns: Sequence[str] | None = None, **options: Any) -> Dataset:
    """Return a dataset of the rows of ORC files, a block for each file; arguments as for `read_parquet`."""

    def read(path: str, _more: Mapping[str, Any]) -> pa.Table:
        return pa.orc.read_table(path, columns=None if columns is None else list(columns))

    return whole_files(paths, (".orc",), options, read, "read_orc", takes_no_more=True)


def read_sql(sql: str, connection_factory: Callable[[], Any], *, sql_params: Any = None, **options: Any) -> Dataset:
    """Return a dataset of the rows of a query, in one block.

    Args:
        sql: the query.
        connection_factory: returns a connection of Python's DB-API. A task calls it.
        sql_params: parameters of the query.
        options: `concurrency`, `override_num_blocks` and other options of tasks, accepted as in Ray, and without
            effect: one task reads all rows.

    Raises:
        TypeError: the query is to be cut by `shard_keys`.
    """
    if options.pop("shard_keys", None):
        raise TypeError(
            "read_sql: dualray does not have the argument shard_keys; read each part as a dataset, and combine the "
            "datasets with union()"
        )

    def read() -> pa.Table:
        connection = connection_factory()
        try:
            cursor = connection.cursor()
            cursor.execute(sql, *([] if sql_params is None else [sql_params]))
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()
        return blocks.table_of_rows(rows) if rows else pa.table({name: pa.array([], pa.null()) for name in names})

    return Dataset(Plan((Read(function=read),), (), "read_sql"))


def whole_files(
    paths: Paths,
    endings: tuple[str, ...] | None,
    options: Mapping[str, Any],
    read: Callable[[str, Mapping[str, Any]], pa.Table],
    name: str,
    *,
    takes_no_more: bool = False,
) -> Dataset:
    more = dict(options)
    asked = asked_of(paths, endings, more, name)
    if takes_no_more:
        none_left(more, name)

    def part(path: str) -> Read:
        return Read(
            function=lambda: asked.extended(read(path, more), path),
            size_bytes=Path(path).stat().st_size,
            files=(path,),
        )

    return asked.dataset([part(path) for path in asked.files], name)


def _json_table(path: str, options: Mapping[str, Any]) -> pa.Table:
    try:
        return pa.json.read_json(path, **options)
    except pa.ArrowInvalid:
        with pa.input_stream(path, compression="detect") as file:
            text = io.BytesIO(file.read()).read().decode()
        try:
            found = json.loads(text)
        except ValueError:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        rows = found if isinstance(found, list) else [found]
        if all(isinstance(row, list) for row in rows):  # as in Ray, the columns are named by their places
            most = max(map(len, rows), default=0)
            rows = [{str(place): row[place] if place < len(row) else None for place in range(most)} for row in rows]
        return blocks.table_of_rows(rows)


def _files(paths: Paths, endings: tuple[str, ...] | None, *, is_lenient: bool = False) -> list[str]:
    """The files that paths stand for, sorted within each; of directories, those with one of the endings.

    Raises:
        FileNotFoundError: a path, or a pattern, stands for none.
    """
    found: list[str] = []
    for path in paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]:
        whole = Path(local_path(path)).absolute()
        if whole.is_dir():
            here = sorted(
                str(entry)
                for entry in whole.rglob("*")
                if entry.is_file()
                and not entry.name.startswith((".", "_"))
                and (endings is None or entry.name.lower().endswith(endings))
            )
        elif whole.is_file():
            here = [str(whole)]
        else:
            here = sorted(glob.glob(str(whole), recursive=True))  # noqa: PTH207 - the pattern is absolute
        if not here and not is_lenient:
            kinds = f" *{' or *'.join(endings)}" if endings else ""
            raise FileNotFoundError(
                f"{str(path)!r} matches no file; give a file, a directory with files{kinds}, or a pattern"
            )
        found += here
    if not found:
        raise ValueError("none of the given paths is an existing file")
    return found


def _partition(path: str) -> dict[str, str]:
    """What the directories of a file say: {"x": "1"} of .../x=1/..."""
    pairs = (part.partition("=") for part in Path(path).parent.parts)
    return {name: value for name, is_pair, value in pairs if is_pair}


def _check_columns(path: str, there: Iterable[str], wanted: Sequence[str] | None) -> None:
    missing = [name for name in wanted or [] if name not in there]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; the columns are {', '.join(map(repr, there))}")


def none_left(options: Mapping[str, Any], name: str) -> None:
    if options:
        raise TypeError(f"{name} has no argument {next(iter(options))!r}")


def _same(tables: Any) -> Any:
    return tables


def target_size() -> int:
    """`target_max_block_size` of the context; None stands for 128 MiB."""
    return DataContext.get_current().target_max_block_size or _TARGET_DEFAULT


def blocks_wanted(override_num_blocks: int | None, parallelism: int = -1) -> int | None:
    """How many blocks a program asks for; `parallelism` is Ray's old name, and -1 leaves the choice to the library.

    Raises:
        ValueError: the number is below 1.
    """
    if override_num_blocks is None:
        return None if parallelism == -1 else blocks_wanted(parallelism)
    if not is_count(override_num_blocks, 1):
        raise ValueError(f"override_num_blocks={override_num_blocks!r} must be an int of at least 1")
    return override_num_blocks
