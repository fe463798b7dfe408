"""How far a prediction is from what then happens: `python -m benchmarks.fidelity`.

Twelve programs (fidelity_programs.py) are recorded with one worker on this machine and predicted for two workers, and
for two, three and four nodes, in network namespaces with a limited rate; and, for the ranking of policies, for three
nodes under each of three placement policies. Then they run there. `--drawn SEED` adds eight programs that are drawn
(fidelity_drawn.py); with two repeats all twenty take about 25 minutes. Steps, in this order; without a name, all of
them:

    predict   calibrate, record, predict; write benchmarks/fidelity/predictions.json and commit it
    measure   run all in network namespaces (root in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN), which is refused
              while predictions.json differs from what is committed; write docs/fidelity.md
    residuals print what nine of ten pairs do not exceed (RESIDUALS of dualray/whatif/intervals.py), and the coverage of
              intervals that are made of all other programs

All nodes are on this machine and share its cores, which predictions take into account (`host_cores`). What is measured
is the median of some repeats; beside it stands the spread of the repeats, and of a fixed piece of computing: the noise
of the machine. That piece is also timed before and after each run: one beside which others used the machine is
repeated, and what was disturbed all the same is marked.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, log
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks import fidelity_drawn
from benchmarks.fidelity_programs import PROGRAMS, SLOWED_MAX
from dualray import whatif
from dualray.recording.calibration import Calibration
from dualray.shared.units import parse_rate_bytes_per_s
from dualray.whatif.calibrate import calibrate
from dualray.whatif.configurations import Configuration, placement_path
from tests.real.cluster.namespaces import NamespacedMachine, Network, why_not

HERE = Path(__file__).parent
PREDICTIONS = HERE / "fidelity" / "predictions.json"
MEASURED = HERE / "fidelity" / "measured.json"
CALIBRATION = HERE / "fidelity" / "calibration.yaml"
PAGE = HERE.parent / "docs" / "fidelity.md"
RATE = "400Mbps"
BURST = "80kb"
"""What passes at once after a rest: one segment of the kernel's. With more, objects of that size take no time at all,
which no network of this rate does."""
STORE_BYTES = 256 << 20
POLICIES = ("hybrid", "spread", "benchmarks.fidelity_policies:LastFirst")
CORES = len(os.sched_getaffinity(0))

CLUSTERS: dict[str, Configuration] = {
    "2 workers": Configuration(nodes=1, cpus=2, store_bytes=STORE_BYTES),
    **{
        f"{nodes} nodes": Configuration(
            nodes=nodes,
            cpus=1,
            store_bytes=STORE_BYTES,
            network_bytes_per_s=parse_rate_bytes_per_s(RATE, "rate"),
            latency_ns=0,
        )
        for nodes in (2, 3, 4)
    },
}
RANKED = "3 nodes"
"""Where the policies are compared."""

CLUSTERS_RUN = [(name, "hybrid") for name in CLUSTERS] + [(RANKED, policy) for policy in POLICIES if policy != "hybrid"]


def key(cluster: str, policy: str) -> str:
    """The name of a cluster with a policy."""
    return cluster if policy == "hybrid" else f"{cluster}, {policy}"


RUN = [key(cluster, policy) for cluster, policy in CLUSTERS_RUN]


# ---- Predicting ----------------------------------------------------------------------------------------------------


def predict(seconds: float, seeds: int, names: list[str]) -> dict[str, Any]:
    """Calibrate, record and predict; what predictions.json holds."""
    fit = calibrate(seconds=seconds)
    CALIBRATION.parent.mkdir(exist_ok=True)
    CALIBRATION.write_text(fit.calibration.dump())
    with tempfile.TemporaryDirectory(prefix="dualray-fidelity-") as directory:
        where = Path(directory)
        command = [sys.executable, "-m", "benchmarks.fidelity_programs", "record", str(where), *names]
        subprocess.run(command, check=True, timeout=300, cwd=HERE.parent)
        traces = {name: whatif.load(where / f"{name}.parquet") for name in names}
        return {
            "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            "machine": fit.calibration.machine,
            "held_out_error": fit.calibration.error,
            "noise": noise(),
            "programs": {name: predicted(trace, fit.calibration, seeds) for name, trace in traces.items()},
        }


def predicted(trace: whatif.Trace, calibration: Calibration, seeds: int) -> dict[str, Any]:
    """Of one program: what was recorded, and what is predicted, in seconds."""
    configs = [replace(CLUSTERS[cluster], policy=policy) for cluster, policy in CLUSTERS_RUN]
    rows = whatif.predict(trace, configs, seeds=seeds, jobs=1, calibration=calibration, host_cores=float(CORES)).rows
    found: dict[str, Any] = {"recorded_s": trace.graph.makespan_ns / 1e9, "tasks": len(trace.graph.tasks)}
    for (cluster, policy), row in zip(CLUSTERS_RUN, rows, strict=True):
        found[key(cluster, policy)] = row.lacks or [row.makespan_s, row.low_s, row.high_s]
    return found


def noise() -> float:
    """By how much the slower half of a fixed piece of computing is slower than the fastest."""
    took = []
    for _ in range(15):
        begun = time.perf_counter()
        sum(index * index for index in range(200_000))
        took.append(time.perf_counter() - begun)
    return median(took) / min(took) - 1


# ---- Measuring -----------------------------------------------------------------------------------------------------


def is_committed(path: Path) -> bool:
    """Whether git knows this file as it is."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "--", str(path)], cwd=HERE, capture_output=True, text=True, check=True
    )
    return path.exists() and not done.stdout.strip()


Times = dict[str, dict[str, list[float]]]
"""By cluster and program."""


def measure(repeats: int, names: list[str]) -> tuple[Times, Times]:
    """Run the programs in every cluster: seconds, and by how much the machine was slowed down by others meanwhile."""
    found: Times = {}
    slowed: Times = {}
    bits_per_s = parse_rate_bytes_per_s(RATE, "rate") * 8
    for number, (cluster, policy) in enumerate(CLUSTERS_RUN):
        config = CLUSTERS[cluster]
        begun = time.perf_counter()
        # A machine that stalls for seconds is no reason to give up a node: this is no test of failures.
        limits = {"placement_policy": placement_path(policy), "suspicion_ns": 60_000_000_000}
        network = Network(Path(f"/tmp/drf{os.getpid()}n{number}"), limits)
        try:
            machines = [network.machine() for _ in range(config.nodes)]
            for machine in machines:
                machine.limit(bits_per_s, BURST)
            address = start(machines, config)
            found[key(cluster, policy)], slowed[key(cluster, policy)] = run(machines[0], address, repeats, names)
        finally:
            network.close()
        print(f"{key(cluster, policy)}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)
    return found, slowed


def start(machines: list[NamespacedMachine], config: Configuration) -> str:
    """Start a node on each machine; the head's address."""
    options = ["--num-cpus", f"{config.cpus:g}", "--object-store-memory", f"{config.store_bytes >> 20}MiB"]
    head = machines[0]
    head.dualray("start", "--head", "--node-ip", head.address, "--port", "6399", *options)
    address = f"{head.address}:6399"
    for machine in machines[1:]:
        machine.dualray("start", "--address", address, "--node-ip", machine.address, *options)
    return address


def run(
    head: NamespacedMachine, address: str, repeats: int, names: list[str]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Run the programs from the head's machine: seconds, and slowness, by program. Runs that were disturbed count only
    where there are no others."""
    command = head.command("-m", "benchmarks.fidelity_programs", "run", address, str(repeats), *names)
    done = subprocess.run(
        command, env=head.environment, capture_output=True, text=True, timeout=900, cwd=HERE.parent, check=False
    )
    if done.returncode:
        raise RuntimeError(f"a program has failed: {done.stderr.strip()[-2000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    took: dict[str, list[float]] = {}
    slowed: dict[str, list[float]] = {}
    for name in names:
        of_name = [row for row in rows if row["name"] == name]
        calm = [row for row in of_name if row["slowed"] < SLOWED_MAX] or of_name
        took[name] = [row["took_s"] for row in calm]
        slowed[name] = [row["slowed"] for row in calm]
    return took, slowed


# ---- The page ------------------------------------------------------------------------------------------------------


def errors(predictions: dict[str, Any], measured: Times) -> Iterator[tuple[str, str, float]]:
    """Of each pair of a program and a cluster with its policy: both, and |predicted - measured| / measured."""
    for name, program in predictions["programs"].items():
        for cluster in RUN:
            if name in measured.get(cluster, {}):
                real_s = median(measured[cluster][name])
                yield name, cluster, abs(program[cluster][0] - real_s) / real_s


def page(predictions: dict[str, Any], measured: Times, noise_then: float, slowed: Times) -> str:
    """docs/fidelity.md."""
    found = {(name, cluster): error for name, cluster, error in errors(predictions, measured)}
    worst = max(found, key=lambda pair: found[pair])
    of_drawn = [error for (name, _), error in found.items() if name not in PROGRAMS]
    number = len({name for name, _ in found})
    scatter = median(spread(took) for of in measured.values() for took in of.values())
    disturbed = [
        f"- {name} on {cluster}: {min(each):.0%}"
        for cluster, of in slowed.items()
        for name, each in of.items()
        if min(each) >= SLOWED_MAX
    ]
    slowdowns = "On no cluster did other programs on the machine slow down every measured run of a program."
    if disturbed:
        head = "Other programs on the machine slowed down every measured run of some programs, by at least this share:"
        slowdowns = "\n".join([head, "", *disturbed])
    of_random = f" For randomly generated programs, the median error was {median(of_drawn):.1%}." if of_drawn else ""
    text = f"""# Fidelity: predictions compared with real runs

The benchmark `python -m benchmarks.fidelity` compares predicted times of programs with measured times.
`benchmarks.fidelity` measures the times of basic operations, as `dualray calibrate` does, and records a run of each of
{number} programs with one worker. For each of the {number} recorded programs, `benchmarks.fidelity` predicts the run
time with two workers on one node, and on two, three and four nodes. `benchmarks.fidelity` commits the predictions to
git (`benchmarks/fidelity/predictions.json`) before it runs the programs on the predicted clusters. All nodes of
`benchmarks.fidelity` share {CORES} cores of one machine. Each node of `benchmarks.fidelity` is a Linux network
namespace, and the network between the nodes is limited to {RATE}.

- `benchmarks.fidelity` ran on a machine with {predictions["machine"]}, and made the predictions at
  {predictions["date"]}.
- For {len(found)} pairs of a program and a cluster, the **median absolute error of the predicted times was
  {median(found.values()):.1%}**. The largest error of a predicted time was {found[worst]:.1%}, for the program
  `{worst[0]}` on {worst[1]}.{of_random}
- To measure the *noise* of its machine, `benchmarks.fidelity` repeats a computation, and compares its median time with
  its shortest time. The median time exceeded the shortest time of the computation by
  {predictions["noise"]:.1%} before the predictions, and by {noise_then:.1%} before the programs' run times were
  measured.
- Repeated runs of a program on the same cluster differed by {scatter:.1%} (the median difference between the longest
  and the shortest run).
- The held-out error of the calibration of `benchmarks.fidelity` (its median error for measurements that the
  calibration did not use) was {predictions["held_out_error"]:.1%}.

{slowdowns}

The following table shows the recorded, predicted and measured run times of the programs in seconds. The column
`measured` shows the median of several runs, with the shortest and the longest run in brackets.

| program | recorded | cluster | predicted | measured | error |
|---|--:|---|--:|--:|--:|"""
    lines = text.splitlines()
    for name, program in predictions["programs"].items():
        for cluster in RUN:
            if (name, cluster) not in found:
                continue
            took = measured[cluster][name]
            sign = "+" if program[cluster][0] > median(took) else "-"
            lines.append(
                f"| {name} | {program['recorded_s']:.2f} | {cluster} | {program[cluster][0]:.2f} | {median(took):.2f} "
                f"({min(took):.2f} to {max(took):.2f}) | {sign}{found[name, cluster]:.1%} |"
            )
    if of_drawn:
        drawn = [name for name in predictions["programs"] if name not in PROGRAMS]
        lines += ["", "Randomly generated programs (`benchmarks/fidelity_drawn.py`):", ""]
        lines += [f"- {name}: {fidelity_drawn.drawn(name)}" for name in drawn]
    lines += ["", "## Intervals", "", *coverage(predictions, measured)]
    lines += ["", f"## Three policies on {RANKED}", "", *ranking(predictions, measured), ""]
    return "\n".join(lines)


def logs(predictions: dict[str, Any], measured: Times) -> Iterator[tuple[str, str, float]]:
    """Of each pair: program, cluster, |log(measured / predicted)|."""
    for name, program in predictions["programs"].items():
        for cluster in CLUSTERS:
            if name in measured.get(cluster, {}):
                yield name, cluster, abs(log(median(measured[cluster][name]) / program[cluster][0]))


def nine_of_ten(errors_of_others: list[float]) -> float:
    """What one more of the same kind does not exceed, nine times of ten."""
    ordered = sorted(errors_of_others)
    return ordered[min(len(ordered), ceil(0.9 * (len(ordered) + 1))) - 1]


def kind_of(cluster: str) -> str:
    """The key of RESIDUALS."""
    return "one node" if CLUSTERS[cluster].nodes == 1 else "several nodes"


def residuals(predictions: dict[str, Any], measured: Times) -> str:
    """What the model's own errors are, and how well intervals hold that are made of the errors of other programs."""
    pairs = list(logs(predictions, measured))
    of_kind = {
        kind: [each for _, cluster, each in pairs if kind_of(cluster) == kind] for kind in ("one node", "several nodes")
    }
    lines = [f"{kind}: {nine_of_ten(each):.3f}" for kind, each in of_kind.items()]
    held = 0
    for name, cluster, own in pairs:
        others = [each for other, on, each in pairs if other != name and kind_of(on) == kind_of(cluster)]
        held += own <= nine_of_ten(others)
    lines.append(f"intervals of the other programs' errors hold {held} of {len(pairs)} pairs ({held / len(pairs):.0%})")
    return "\n".join(lines)


def coverage(predictions: dict[str, Any], measured: Times) -> list[str]:
    """How many of the measured times lie in the interval of their prediction, and each that does not."""
    missed = []
    count = 0
    for name, program in predictions["programs"].items():
        for cluster in RUN:
            if name not in measured.get(cluster, {}):
                continue
            took = measured[cluster][name]
            _, low_s, high_s = program[cluster]
            count += 1
            if not low_s <= median(took) <= high_s:
                missed.append(
                    f"- {name} on {cluster}: {median(took):.2f} s (repeats {min(took):.2f} to {max(took):.2f}), and "
                    f"the interval is {low_s:.2f} to {high_s:.2f}"
                )
    held = count - len(missed)
    summary = f"The 90 % intervals contain **{held} of {count}** measured times ({held / count:.0%})."
    if not missed:
        return [summary]
    return [f"{summary} These measured times are outside of the interval of their prediction:", "", *missed]


def spread(took: list[float]) -> float:
    """Of repeats: how far apart they are."""
    return (max(took) - min(took)) / median(took)


def ranking(predictions: dict[str, Any], measured: Times) -> list[str]:
    """Whether the policy that is predicted to be best is best, or how far from it."""
    names = [key(RANKED, policy) for policy in POLICIES]
    if not all(name in measured for name in names):
        return ["Not measured."]
    rows, right, count = [], 0, 0
    for program, predicted_s in predictions["programs"].items():
        if program not in measured[names[0]]:
            continue
        real = {name: median(measured[name][program]) for name in names}
        chosen = min(names, key=lambda name: predicted_s[name][0])
        behind = real[chosen] / min(real.values()) - 1
        right += behind <= 0.05
        count += 1
        cells = " | ".join(f"{predicted_s[name][0]:.2f} / {real[name]:.2f}" for name in names)
        policy = POLICIES[names.index(chosen)]
        rows.append(f"| {program} | {cells} | {policy} | {behind:.1%} |")
    heads = " | ".join(f"{policy}: predicted / measured" for policy in POLICIES)
    return [
        f"For **{right} of {count}** programs, the scheduling policy with the shortest predicted time was at most 5 %",
        "slower in real runs than the fastest of three policies.",
        "",
        f"| program | {heads} | predicted best | slower than the fastest by |",
        f"|---|{'--:|' * len(POLICIES)}---|--:|",
        *rows,
    ]


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say how long it took."""
    begun = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - begun:.0f} s", file=sys.stderr, flush=True)


def main(
    step: Annotated[
        str, typer.Argument(help="all, predict, measure, residuals, or try: small, and nothing is committed.")
    ] = "all",
    names: Annotated[list[str] | None, typer.Argument(help="Programs; default: all twelve, and those drawn.")] = None,
    drawn: Annotated[int | None, typer.Option(min=0, help="Add the eight programs of this seed.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    seconds: Annotated[float, typer.Option(help="Of the calibration.")] = 60.0,
    seeds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """See the module."""
    chosen = names or [*PROGRAMS, *(fidelity_drawn.names_of(drawn) if drawn is not None else ())]
    if step == "residuals":
        print(residuals(json.loads(PREDICTIONS.read_text()), json.loads(MEASURED.read_text())))
        return
    lacking = why_not()
    if lacking:
        raise SystemExit(f"network namespaces cannot be made: {lacking}")
    if step in ("all", "predict", "try"):
        with timed("calibrating, recording and predicting"):
            PREDICTIONS.parent.mkdir(exist_ok=True)
            PREDICTIONS.write_text(json.dumps(predict(seconds, seeds, chosen), indent=1) + "\n")
    if step in ("all", "predict"):
        files = [str(PREDICTIONS), str(CALIBRATION)]
        subprocess.run(["git", "add", "--", *files], cwd=HERE, check=True)
        message = "Predict the programs of benchmarks/fidelity, before they run"
        subprocess.run(["git", "commit", "-qm", message, "--", *files], cwd=HERE, check=True)
    if step in ("all", "measure", "try"):
        if step != "try" and not is_committed(PREDICTIONS):
            raise SystemExit(
                f"{PREDICTIONS} is not committed: predictions are committed before the runs that test them"
            )
        predictions = json.loads(PREDICTIONS.read_text())
        if step == "measure" and names is None:
            chosen = list(predictions["programs"])
        with timed("running"):
            noise_then = noise()
            measured, slowed = measure(repeats, chosen)
        text = page(predictions, measured, noise_then, slowed)
        if step == "try":
            print(text)
        else:
            MEASURED.write_text(json.dumps(measured, indent=1) + "\n")
            _, heading, of_ray = PAGE.read_text().partition("## On Ray")  # of fidelity_on_ray.py
            PAGE.write_text(f"{text}\n{heading}{of_ray}" if heading else text)
            print("\n".join(text.splitlines()[6:16]))


if __name__ == "__main__":
    typer.run(main)
