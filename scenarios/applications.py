"""What each application would do on clusters up to the size that its document speaks of: tables and scaling curves.

    python -m scenarios.applications                # all of them: minutes
    python -m scenarios.applications rl_pong a3c    # some
    python -m scenarios.applications --inputs .     # what the scenarios of lbfgs and resnet read, if run by themselves
    python -m scenarios.applications --write        # what is kept into docs/applications.md and the examples' READMEs

Each application has a scenario file, scenarios/application_*.yaml, that runs its script, unchanged, on the largest
cluster; here the cluster and the number of workers vary. What comes out is kept in scenarios/applications.json, and is
the same in each run. docs/applications.md says what it means.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from dualray.shared.nearest import nearest
from dualray.shared.scenario.cluster import NodeGroup
from dualray.shared.scenario.scenario import Scenario
from dualray.testing.run import load_scenario, run_scenario
from examples.input_data import digits, write_idx
from examples.resnet.cifar_input import coloured_digits, write_cifar

DIRECTORY = Path(__file__).parent
ROOT = DIRECTORY.parent
RESULTS = DIRECTORY / "applications.json"
PAGE = ROOT / "docs" / "applications.md"
PICTURE = ROOT / "docs" / "images" / "applications.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """One cluster.

    Attributes:
        workers: what the curve's axis counts.
        amount: of the work that is done there.
        nodes, cpus, gpus: of the cluster; CPUs and GPUs of each node.
        args: of the script.
    """

    workers: int
    amount: float
    nodes: int
    cpus: int
    gpus: int = 0
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """An application, and the clusters that it is run on, the largest last: that of its scenario file.

    Attributes:
        name: of its folder, or of its file where that has several.
        counts: what a worker is.
        unit: of the work.
        sizes: the first is what speed-up is over.
    """

    name: str
    counts: str
    unit: str
    sizes: tuple[Size, ...]


def _cores(count: int) -> dict[str, int]:
    return {"nodes": 1, "cpus": count}


def _hyperopt(cores: int) -> Size:
    return Size(workers=cores, amount=64, **_cores(cores), args=("--trials=64", "--steps=2"))


def _lbfgs(actors: int) -> Size:
    return Size(
        workers=actors,
        amount=20,
        **_cores(actors),
        args=(f"--num-actors={actors}", "--iterations=20", "--data=MNIST_data"),
    )


def _pong(batch: int, nodes: int, cpus: int) -> Size:
    flags = (f"--batch-size={batch}", "--iterations=1", "--steps-max=10")
    return Size(workers=min(batch, nodes * cpus), amount=batch, nodes=nodes, cpus=cpus, args=flags)


def _policy_gradient(actors: int) -> Size:
    flags = (f"--num-workers={actors}", "--iterations=1", "--steps=256", "--target=1", "--episodes=1")
    return Size(workers=actors, amount=256 * actors, **_cores(actors), args=flags)


def _resnet(gpus: int) -> Size:
    files = (f"--{part}_data_path=digits.bin" for part in ("train", "eval"))
    small = "--batch_size=4 --num_residual_units=1 --steps=20 --eval_interval=20 --eval_batch_count=1"
    return Size(
        workers=gpus,
        amount=20 * 4 * gpus,
        nodes=1,
        cpus=16,
        gpus=gpus,
        args=(*files, f"--num_gpus={gpus}", *small.split()),
    )


def _a3c(workers: int) -> Size:
    flags = (str(workers), "--steps=2000", "--random-games=1", "--log-dir=results")
    return Size(workers=workers, amount=2000, nodes=1, cpus=64, args=flags)


def _evolution(actors: int) -> Size:
    flags = (f"--num-workers={actors}", "--target=1", "--iterations=1", "--noise-size=1000000", "--episodes=1")
    return Size(workers=actors, amount=16 * actors, **_cores(actors), args=flags)


APPLICATIONS = {
    application.name: application
    for application in (
        Application(name="hyperopt", counts="cores", unit="trials", sizes=tuple(map(_hyperopt, (8, 64)))),
        Application(name="lbfgs", counts="actors", unit="iterations", sizes=tuple(map(_lbfgs, (1, 2, 4, 8, 64)))),
        Application(
            name="rl_pong",
            counts="cores",
            unit="games",
            sizes=(_pong(1, 1, 64), _pong(10, 1, 64), _pong(60, 1, 64), _pong(300, 11, 18)),
        ),
        Application(
            name="policy_gradient",
            counts="actors",
            unit="steps",
            sizes=tuple(map(_policy_gradient, (1, 4, 16, 64))),
        ),
        Application(name="resnet", counts="GPUs", unit="pictures", sizes=tuple(map(_resnet, (1, 2, 4, 8)))),
        Application(name="a3c", counts="workers", unit="steps", sizes=tuple(map(_a3c, (1, 4, 8, 16)))),
        Application(
            name="evolution_strategies",
            counts="actors",
            unit="games",
            sizes=tuple(map(_evolution, (1, 4, 16, 64))),
        ),
    )
}


def scenario_of(application: Application, size: Size | None = None) -> Scenario:
    """An application's scenario file, with another size if one is given."""
    scenario = load_scenario(DIRECTORY / f"application_{application.name}.yaml")
    if size is None:
        return scenario
    cluster = scenario.cluster.model_copy(
        update={"nodes": [NodeGroup(count=size.nodes)], "cpus": size.cpus, "gpus": size.gpus}
    )
    workload = scenario.workload.model_copy(update={"args": list(size.args)})
    return scenario.model_copy(update={"cluster": cluster, "workload": workload})


def write_inputs(directory: Path) -> None:
    """Write what some of the scenarios read: scikit-learn's digits, as `digits.bin` in CIFAR's format and, over and
    over, as the 60,000 images of `MNIST_data`."""
    write_cifar(directory / "digits.bin", coloured_digits(200, seed=0), "cifar10")
    few = digits(one_hot=False)
    (directory / "MNIST_data").mkdir(exist_ok=True)
    for name, part, count in (("train", few.train, 60_000), ("t10k", few.test, 1_000)):
        rows = np.arange(count) % part.num_examples
        images = (255 * part.images[rows]).astype(np.uint8).reshape(-1, 8, 8)
        write_idx(directory / "MNIST_data" / f"{name}-images-idx3-ubyte", images)
        write_idx(directory / "MNIST_data" / f"{name}-labels-idx1-ubyte", part.labels[rows].astype(np.uint8))


def seconds_of(scenario: Scenario) -> float:
    """Run it where its files are; how long it took, from the first submission to the end, in virtual time.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryDirectory(prefix="dualray-applications-") as directory, contextlib.chdir(directory):
        write_inputs(Path())
        outcome = run_scenario(scenario, directory=DIRECTORY)
    if not outcome.succeeded:
        raise RuntimeError(f"{scenario.name} ended with {outcome.error[0]}: {outcome.message}")
    return outcome.makespan_ns / 1e9


def read_results() -> dict[str, dict[str, float]]:
    """Of each application that has been run: seconds by the number of workers."""
    found: dict[str, dict[str, float]] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def rows_of(application: Application, seconds: Mapping[str, float]) -> list[tuple[Size, float, float]]:
    """Of each size the seconds, and the speed-up: work per second, over that of the first size.

    Args:
        seconds: by the number of workers, as text, as they are kept.
    """
    found = [(size, seconds[str(size.workers)]) for size in application.sizes]
    first = found[0][0].amount / found[0][1]
    return [(size, took_s, size.amount / took_s / first) for size, took_s in found]


def cells_of(application: Application, seconds: Mapping[str, float]) -> list[tuple[str, ...]]:
    """The rows of the table, as text: cluster, workers, work, virtual seconds, work per second, speed-up."""
    cells: list[tuple[str, ...]] = []
    for size, took_s, speed_up in rows_of(application, seconds):
        of_node = f"{size.gpus} GPUs" if size.gpus > 1 else "1 GPU" if size.gpus else "1 core"
        of_node = f"{size.cpus} cores" if size.cpus > 1 and not size.gpus else of_node
        rate = size.amount / took_s
        cells.append(
            (
                of_node if size.nodes == 1 else f"{size.nodes} x {of_node}",
                str(size.workers),
                f"{size.amount:,.0f}",
                f"{took_s:.3f}",
                f"{rate:,.0f}" if rate >= 100 else f"{rate:.2f}",
                f"{speed_up:.1f}",
            )
        )
    return cells


def table_of(application: Application, seconds: Mapping[str, float]) -> Table:
    """What is printed."""
    table = Table(title=application.name)
    for column in ("cluster", application.counts, application.unit, "virtual s", f"{application.unit}/s", "speed-up"):
        table.add_column(column, justify="left" if column == "cluster" else "right")
    for cells in cells_of(application, seconds):
        table.add_row(*cells)
    return table


def draw(kept: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Write the picture: speed-up over workers, in the format that the path's ending says."""
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    most = max(size.workers for application in APPLICATIONS.values() for size in application.sizes)
    axes.plot([1, most], [1, most], color="0.7", linestyle="--", label="as many times as fast")
    for application in (APPLICATIONS[name] for name in APPLICATIONS if name in kept):
        rows = rows_of(application, kept[application.name])
        workers = [size.workers for size, _, _ in rows]
        axes.plot(workers, [up for _, _, up in rows], ".-", label=f"{application.name}, {application.counts}")
    axes.set(xscale="log", yscale="log", xlabel="workers", ylabel="speed-up")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize="small")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def texts_of(kept: Mapping[str, Mapping[str, float]]) -> list[tuple[Path, str, str]]:
    """What the pages say of applications that have been run: page, application, Markdown."""
    found = []
    for application in (APPLICATIONS[name] for name in APPLICATIONS if name in kept):
        rows = cells_of(application, kept[application.name])
        columns = (
            "cluster",
            application.counts,
            application.unit,
            "virtual s",
            f"{application.unit} a second",
            "speed-up",
        )
        lines = [columns, ("---", *("--:" for _ in columns[1:])), *rows]
        found.append((PAGE, application.name, "\n".join(f"| {' | '.join(line)} |" for line in lines)))
        (first, *_), (last, *_, rate, times) = rows[0], rows[-1]
        fewest, most = rows[0][1], rows[-1][1]
        command = f"python -m scenarios.applications {application.name}"
        of_first = "" if first == last else f" ({first})"
        words = (
            f"`{command}` runs the program on virtual machines. With {most} {application.counts} ({last}),\nit reached "
            f"{rate} {application.unit} a second, {times} times the rate with {fewest}{of_first}.\n"
            f"[docs/applications.md](../../docs/applications.md) has the other sizes."
        )
        found.append((ROOT / "examples" / application.name / "README.md", application.name, words))
    return found


def placed(page: str, name: str, text: str) -> str:
    """A page with a text between its marks for an application."""
    begin, end = f"<!-- scaling of {name} -->\n", "<!-- end -->"
    before, mark, rest = page.partition(begin)
    if not mark or end not in rest:
        raise ValueError(f"the page has no {begin.strip()} with an {end} after it")
    return f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Of applications; default: all.")] = None,
    is_written: Annotated[bool, typer.Option("--write", help="Run nothing; put what is kept into the pages.")] = False,
    inputs: Annotated[
        Path | None, typer.Option(help="Run nothing; write the scenarios' inputs to a directory.")
    ] = None,
) -> None:
    """Run applications on clusters of several sizes, and keep and print how they scale."""
    if inputs is not None:
        write_inputs(inputs)
        return
    if is_written:
        kept = read_results()
        draw(kept, PICTURE)
        for path, name, text in texts_of(kept):
            path.write_text(placed(path.read_text(), name, text))
        return
    for name in names or APPLICATIONS:
        if name not in APPLICATIONS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(APPLICATIONS)}{nearest(name, APPLICATIONS)}")
    for application in (APPLICATIONS[name] for name in names or APPLICATIONS):
        seconds = {
            str(size.workers): round(seconds_of(scenario_of(application, size)), 6) for size in application.sizes
        }
        kept = read_results() | {application.name: seconds}  # read anew: others may have run meanwhile
        RESULTS.write_text(json.dumps(dict(sorted(kept.items())), indent=2) + "\n")
        Console().print(table_of(application, seconds))


if __name__ == "__main__":
    typer.run(main)
