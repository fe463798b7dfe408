"""A dataset ten times as large as the object store: generate Parquet, read it, transform it, consume it batch by batch.

    python -m benchmarks.bench_data --gigabytes 5 --store 500MB [--ray] [--directory DIR]

Prints GB/s and the most memory that the driver and all of its processes had together (PSS: shared pages count once);
with `--ray` those of Ray Data, too, on the same files. The files are removed at the end. A size counts the bytes of the
values in memory; the files are about as large, as random numbers do not get smaller.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet

from dualray.shared.units import parse_size_bytes

COLUMNS = 8
ROWS_OF_GROUP = 256 * 1024  # 16 MB
GROUPS_OF_FILE = 8
PAUSE_S = 0.1


def generate(directory: Path, size_bytes: int) -> int:
    """Write files of random numbers, of `size_bytes` together; how many bytes their values have."""
    random, written, number = np.random.default_rng(0), 0, 0
    schema = pa.schema([(f"c{index}", pa.float64()) for index in range(COLUMNS)])
    while written < size_bytes:
        path = directory / f"{number:04d}.parquet"
        with pa.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(GROUPS_OF_FILE):
                values = random.random((COLUMNS, ROWS_OF_GROUP))
                writer.write_table(pa.table(list(values), schema=schema))
                written += values.nbytes
                if written >= size_bytes:
                    break
        number += 1
    return written


class Memory:
    """Watches how much memory this process and its descendants have together."""

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        here = psutil.Process()
        while not self._is_over.wait(PAUSE_S):
            total = 0
            for process in [here, *here.children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue  # it has ended meanwhile
            self.peak_bytes = max(self.peak_bytes, total)


def consume(data: Any) -> float:
    """Read a dataset, transform it in tasks and add up what comes."""
    total = 0.0
    changed = data.map_batches(lambda batch: {"sum": batch["c0"] + batch["c1"], **batch}, batch_size=None)
    for batch in changed.iter_batches(batch_size=65_536):
        total += float(batch["sum"].sum())
    return total


def run(library: str, directory: Path, store_bytes: int) -> None:
    """Measure one library; prints its row."""
    ray: Any
    options: dict[str, Any] = {"object_store_memory": store_bytes, "num_cpus": 2}
    if library == "ray":
        import ray  # noqa: PLC0415 - it is measured only where it is installed, and asked for

        options |= {"include_dashboard": False, "logging_level": "error"}
    else:
        import dualray as ray  # noqa: PLC0415 - as above
    size = sum(path.stat().st_size for path in directory.iterdir())
    ray.init(**options)
    if library == "ray":
        ray.data.DataContext.get_current().enable_progress_bars = False
    try:
        with Memory() as memory:
            started = time.perf_counter()
            total = consume(ray.data.read_parquet(str(directory)))
            took = time.perf_counter() - started
    finally:
        ray.shutdown()
    print(
        f"{library:8s} {size / 1e9:5.2f} GB in {took:6.1f} s: {size / took / 1e9:5.2f} GB/s, "
        f"peak {memory.peak_bytes / 1e9:4.2f} GB of memory, sum {total:.3f}",
        flush=True,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--store", default="500MB")
    parser.add_argument("--ray", action="store_true", help="measure Ray Data, too, where it is installed")
    parser.add_argument("--directory", help="where to put the files; default: a temporary directory")
    parser.add_argument("--only", choices=["dualray", "ray"], help="on files that are there: what each run does")
    options = parser.parse_args()
    store = parse_size_bytes(options.store)
    if options.only:
        run(options.only, Path(options.directory), store)
        return
    directory = Path(tempfile.mkdtemp(prefix="bench_data-", dir=options.directory))
    try:
        started = time.perf_counter()
        size = generate(directory, int(options.gigabytes * 1e9))
        print(f"generated {size / 1e9:.2f} GB in {time.perf_counter() - started:.1f} s", flush=True)
        libraries = ["dualray"] + (["ray"] if options.ray and importlib.util.find_spec("ray") else [])
        for library in libraries:  # a process each: what one has imported must not count for the other
            command = [sys.executable, "-m", "benchmarks.bench_data", "--only", library]
            subprocess.run([*command, "--directory", str(directory), "--store", options.store], check=True)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
