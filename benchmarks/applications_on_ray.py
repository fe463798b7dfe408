"""The applications of examples/ and the programs of the seed documents in mode "ray", beside plain Ray.

    python -m benchmarks.applications_on_ray [NAME ...] [--repeats 3]    the seven applications, or some
    python -m benchmarks.applications_on_ray --seeds                     the programs of the seed documents

Each application runs on one local Ray of two CPUs, in mode "ray" and on plain Ray in turn, from the start of its
process to its end, and the table has medians. Programs of the seed documents say words that plain Ray does not know:
they have no second column.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.fidelity_on_ray import cluster_of
from examples.resnet.cifar_input import coloured_digits, write_cifar
from tests.seeds.programs import Program, blocks, programs
from tests.test_seeds import write_mnist

ROOT = Path(__file__).parent.parent
TIMEOUT_S = 300
CPUS = 2
ADDRESS = "--redis-address"
_END = "the program has come to its end\n"

APPLICATIONS: dict[str, tuple[str, ...]] = {
    "a3c": ("a3c/driver.py", "2", "--steps=400", "--random-games=1", "--log-dir=results"),
    "evolution_strategies": (
        "evolution_strategies/evolution_strategies.py",
        *("--num-workers=2", "--target=1", "--iterations=2", "--noise-size=1000000", "--episodes=1"),
    ),
    "hyperopt": ("hyperopt/hyperopt_simple.py", "--trials=8", "--steps=20"),
    "lbfgs": ("lbfgs/driver.py", "--num-actors=2", "--iterations=10", "--data=MNIST_data"),
    "policy_gradient": (
        "policy_gradient/example.py",
        *("--num-workers=2", "--iterations=2", "--steps=256", "--target=1", "--episodes=1"),
    ),
    "resnet": (
        "resnet/resnet_main.py",
        *("--train_data_path=digits.bin", "--eval_data_path=digits.bin", "--num_actors=2", "--batch_size=4"),
        *("--num_residual_units=1", "--steps=20", "--eval_interval=20", "--eval_batch_count=1"),
    ),
    "rl_pong": ("rl_pong/driver.py", "--batch-size=8", "--iterations=1", "--steps-max=50"),
}
"""The script of each application, and its arguments."""


def inputs(directory: Path) -> None:
    """Write the input files of the applications."""
    write_mnist(directory / "MNIST_data")
    write_cifar(directory / "digits.bin", coloured_digits(1_000, seed=0), "cifar10")


def environment(address: str = "") -> dict[str, str]:
    """Of a program, and of the nodes that start its workers."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("DUALRAY_", "RAY_ADDRESS"))}
    paths = [str(ROOT), *filter(None, [outside.get("PYTHONPATH")])]
    found = outside | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONWARNINGS": "ignore", "TF_CPP_MIN_LOG_LEVEL": "3"}
    return found | ({"DUALRAY_MODE": "ray", "RAY_ADDRESS": address} if address else {})


def took_s(command: list[str], directory: Path, address: str) -> float:
    """How long a process takes.

    Raises:
        RuntimeError: it failed.
    """
    begun_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment(address),
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-500:]}{done.stderr.strip()[-2000:]}")
    return time.perf_counter() - begun_s


def compare(names: list[str], repeats: int, directory: Path) -> None:
    """Run each application, and print its line."""
    print(f"{'application':22}{'Ray, s':>10}{'dualray, s':>12}{'ratio':>8}   medians of {repeats}, in turn", flush=True)
    for name in names:
        script, *args = APPLICATIONS[name]
        path = str(ROOT / "examples" / script)
        times: tuple[list[float], list[float]] = ([], [])
        with cluster_of(1, CPUS) as cluster:
            given = [path, *args, f"{ADDRESS}={cluster.address}"]
            for repeat in range(repeats):
                for which in (0, 1) if repeat % 2 else (1, 0):
                    command = given if which else ["-m", "benchmarks.plain_ray", *given]
                    times[which].append(took_s(command, directory, cluster.address))
        plain_s, ours_s = map(median, times)
        print(f"{name:22}{plain_s:10.1f}{ours_s:12.1f}{ours_s / plain_s:8.2f}", flush=True)


def run_seed(program: Program, directory: Path) -> str:
    """How long a program of the documents takes, in words, or why it does not run."""
    path = directory / f"{program.name}.py"
    with cluster_of(1, program.num_cpus, program.num_gpus) as cluster:
        path.write_text(program.source(blocks(), cluster.address))
        try:
            return f"{took_s([str(path)], directory, cluster.address):10.1f}"
        except RuntimeError as error:
            return f"    failed: {str(error).strip().splitlines()[-1][:200]}"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Applications, or programs; default: all.")] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    seeds: Annotated[bool, typer.Option("--seeds", help="The programs of the seed documents.")] = False,
) -> None:
    """See the module."""
    os.environ.update(environment())  # nodes start workers with it
    with tempfile.TemporaryDirectory(prefix="dualray-applications-") as where:
        directory = Path(where)
        inputs(directory)
        if not seeds:
            compare(names or list(APPLICATIONS), repeats, directory)
            return
        print(f"{'program':22}{'seconds':>10}")
        for program in programs():
            if names is None or program.name in names:
                print(f"{program.name:22}{run_seed(program, directory)}", flush=True)


if __name__ == "__main__":
    typer.run(main)
