"""How far a prediction for a Ray cluster is from what then happens there: `python -m benchmarks.fidelity_on_ray`.

The programs of `benchmarks.fidelity` are recorded on a Ray of one worker, predicted for two workers and for two to four
nodes, and then run there. A local Ray of several nodes has one network, the loopback of this machine, so that
transfers cost what `dualray calibrate --engine ray` has measured of it, and no rate limits them. Bags, chains, trees
and map-reduce are also predicted without a recording, from the events that Ray exports (`dualray import-ray`). Steps,
in this order; without a name, all of them:

    predict   calibrate, record, import, predict; write ray_calibration.yaml and ray_predictions.json beside fidelity's
    measure   run all, and write the section "On Ray" of docs/fidelity.md

Each worker of Ray takes a second to start, so that all programs, recorded or run, begin when each CPU has one.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.fidelity import CORES, PAGE, STORE_BYTES, noise, spread
from benchmarks.fidelity_programs import PROGRAMS, SLOWED_MAX
from dualray import whatif
from dualray.recording.calibration import Calibration, load_calibration
from dualray.recording.file import write_record
from dualray.recording.ray_import import import_ray
from dualray.whatif.calibrate import calibrate
from dualray.whatif.configurations import Configuration
from dualray.whatif.engines import engine_of

HERE = Path(__file__).parent
CALIBRATION = HERE / "fidelity" / "ray_calibration.yaml"
PREDICTIONS = HERE / "fidelity" / "ray_predictions.json"
CLUSTERS = {
    "2 workers": Configuration(nodes=1, cpus=2, store_bytes=STORE_BYTES, latency_ns=0),
    **{
        f"{nodes} nodes": Configuration(
            nodes=nodes, cpus=1, store_bytes=STORE_BYTES, latency_ns=0, network_bytes_per_s=10**11
        )
        for nodes in (2, 3, 4)
    },
}
IMPORTED = ("bag", "chain", "tree", "shuffle")
"""The kinds that are also predicted from events alone."""
WORKER_S = 4.0
"""In which a new node has its first worker."""
EVENTS_S = 4.0
"""So long Ray may take to write its last events."""
HEADING = "## On Ray"


@contextmanager
def cluster_of(nodes: int, cpus: float, gpus: int = 0, **environment: str) -> Iterator[Any]:
    """A local Ray of so many nodes, with `environment` added to that of its processes."""
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.update(environment)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own
        from ray.cluster_utils import Cluster  # noqa: PLC0415 - it takes a second

        node = {"num_cpus": round(cpus), "num_gpus": gpus, "object_store_memory": STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()
        for name in environment:
            del os.environ[name]


def on_ray(step: str, *given: str) -> str:
    """Run a step in a driver of its own, and return its output."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.fidelity_programs", f"{step}-on-ray", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=HERE.parent, check=False)
    if done.returncode:
        raise RuntimeError(f"a program has failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


# ---- Predicting ------------------------------------------------------------------------------------------------------


def predict(calibration: Calibration, seeds: int, names: list[str]) -> dict[str, Any]:
    """Record and predict."""
    with tempfile.TemporaryDirectory(prefix="dualray-fidelity-") as directory:
        where = Path(directory)
        with cluster_of(1, 1) as cluster:
            on_ray("record", cluster.address, str(where), *names)
        programs = {name: predicted(where / f"{name}.parquet", calibration, seeds) for name in names}
        imported = {}
        for name in names:
            if name.split(",")[0] in IMPORTED:
                imported[name] = predicted(imported_record(name, where), calibration, seeds)
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": calibration.machine,
        "held_out_error": calibration.error,
        "noise": noise(),
        "programs": programs,
        "imported": imported,
    }


def predicted(path: Path, calibration: Calibration, seeds: int) -> dict[str, Any]:
    """Of one record: what was recorded, and what is predicted, in seconds."""
    trace = whatif.load(path)
    found: dict[str, Any] = {"recorded_s": trace.graph.makespan_ns / 1e9, "tasks": len(trace.graph.tasks)}
    configs = list(CLUSTERS.values())
    rows = whatif.predict(trace, configs, seeds=seeds, jobs=1, calibration=calibration, host_cores=float(CORES)).rows
    for cluster, row in zip(CLUSTERS, rows, strict=True):
        found[cluster] = row.lacks or [row.makespan_s, row.low_s, row.high_s]
    return found


def imported_record(name: str, directory: Path) -> Path:
    """The record of a program from the events of its cluster alone."""
    path = directory / f"{name}, imported.parquet"
    with cluster_of(1, 1, RAY_enable_export_api_write="1") as cluster:
        time.sleep(WORKER_S)
        on_ray("once", cluster.address, name)
        time.sleep(EVENTS_S)
        events = Path(cluster.head_node.get_session_dir_path()) / "logs" / "export_events"
        write_record(path, import_ray(events))
    return path


# ---- Measuring -------------------------------------------------------------------------------------------------------


def measure(repeats: int, names: list[str], clusters: list[str]) -> tuple[dict[str, dict[str, list[float]]], list[str]]:
    """Run the programs in each cluster: seconds; and in words, beside which runs others have used the machine."""
    found: dict[str, dict[str, list[float]]] = {}
    disturbed = []
    for cluster in clusters:
        config = CLUSTERS[cluster]
        with cluster_of(config.nodes, config.cpus) as running:
            rows = [json.loads(line) for line in on_ray("run", running.address, str(repeats), *names).splitlines()]
        for name in names:
            of_name = [row for row in rows if row["name"] == name]
            calm = [row for row in of_name if row["slowed"] < SLOWED_MAX]
            if not calm:
                disturbed.append(f"{name} on {cluster} ({min(row['slowed'] for row in of_name):.0%})")
            found.setdefault(cluster, {})[name] = [row["took_s"] for row in calm or of_name]
        print(f"{cluster}: done", file=sys.stderr, flush=True)
    return found, disturbed


def section(
    predictions: Mapping[str, Any], measured: Mapping[str, Mapping[str, list[float]]], disturbed: list[str]
) -> str:
    """The part of docs/fidelity.md."""
    rows, errors = _rows(predictions["programs"], measured)
    imported_rows, imported_errors = _rows(predictions["imported"], measured)
    spreads = [spread(took) for of in measured.values() for took in of.values()]
    repeats = min(len(took) for of in measured.values() for took in of.values())
    head = "| program | recorded | cluster | predicted | measured | error |\n|---|--:|---|--:|--:|--:|"
    lines = [
        HEADING,
        "",
        "`python -m benchmarks.fidelity_on_ray` records the programs on a local Ray with one worker, predicts their",
        "times for two workers and for two to four nodes, and runs them on a local Ray. All nodes share the machine",
        "and its loopback, so no rate limits the transfers.",
        "",
        f"- the machine: {predictions['machine']}; the date of the predictions: {predictions['date']}",
        f"- runs of each pair: {repeats} or more",
        f"- **median absolute error {median(errors):.1%}**, worst error {max(errors):.1%}, of {len(errors)} pairs",
        f"- difference between the longest and the shortest repeated run, median of all pairs: {median(spreads):.1%}",
        f"- noise of the machine during the predictions: {predictions['noise']:.1%}",
        f"- held-out error of the calibration: {predictions['held_out_error']:.1%}",
        "- pairs for which other programs used the machine during every repeated run:",
        f"  {', '.join(disturbed) or 'none'}",
        "",
        head,
        *rows,
    ]
    if imported_errors:
        lines += [
            "",
            f"Predictions from the events that Ray exports: **median absolute error {median(imported_errors):.1%}**,",
            f"worst error {max(imported_errors):.1%}. dualray infers sizes and most dependencies from the events.",
            "",
            head,
            *imported_rows,
        ]
    return "\n".join(lines) + "\n"


def _rows(
    programs: Mapping[str, Any], measured: Mapping[str, Mapping[str, list[float]]]
) -> tuple[list[str], list[float]]:
    """Lines of a table, and the errors in it."""
    lines, errors = [], []
    for name, program in programs.items():
        for cluster, of in measured.items():
            if name not in of or isinstance(program[cluster], str):
                continue
            took = of[name]
            error = program[cluster][0] / median(took) - 1
            errors.append(abs(error))
            lines.append(
                f"| {name} | {program['recorded_s']:.2f} | {cluster} | {program[cluster][0]:.2f} | {median(took):.2f} "
                f"({min(took):.2f} to {max(took):.2f}) | {error:+.1%} |"
            )
    return lines, errors


def main(
    step: Annotated[
        str, typer.Argument(help="all, predict, measure, or try: all, and the page stays as it is.")
    ] = "all",
    names: Annotated[list[str] | None, typer.Argument(help="Programs; default: all twelve.")] = None,
    clusters: Annotated[list[str] | None, typer.Option("--cluster", help="Where they run; default: all four.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="Of the calibration.")] = 60.0,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
    is_calibrated: Annotated[
        bool, typer.Option("--calibrated", help="Take benchmarks/fidelity/ray_calibration.yaml as it is.")
    ] = False,
) -> None:
    """See the module."""
    if step != "measure":
        if not is_calibrated:
            CALIBRATION.write_text(calibrate(seconds=seconds, engine=engine_of("ray")).calibration.dump())
        found = predict(load_calibration(CALIBRATION), seeds, names or list(PROGRAMS))
        PREDICTIONS.write_text(json.dumps(found, indent=1) + "\n")
    if step == "predict":
        return
    predictions = json.loads(PREDICTIONS.read_text())
    text = section(predictions, *measure(repeats, names or list(predictions["programs"]), clusters or list(CLUSTERS)))
    print(text)
    if step != "try":
        PAGE.write_text(f"{PAGE.read_text().partition(HEADING)[0].rstrip()}\n\n{text}")


if __name__ == "__main__":
    typer.run(main)
