"""Pi by throwing darts, with an actor that knows how far the tasks have come.

Shows the pattern of a progress actor: long tasks report to it as they go, the driver asks it now and then instead of
waiting blindly, and stops asking when all is done. Each task has its own seed, so that pi is the same in every run.

    python examples/core/monte_carlo_pi.py --tasks 16 --darts 1000000
    dualray run examples/core/monte_carlo_pi.py --mode sim --nodes 16 -- --tasks 64
"""

import sys
import time

import click
import numpy as np

import dualray as ray

STEPS = 5  # reports of each task


@ray.remote(num_cpus=0)
class Progress:
    """How many darts each task has thrown."""

    def __init__(self, total):
        self.total = total
        self.thrown = {}

    def report(self, task, thrown):
        self.thrown[task] = thrown

    def get_progress(self):
        return sum(self.thrown.values()) / self.total

    def get_reports(self):
        return dict(self.thrown)


@ray.remote
def throw(task, darts, progress):
    """Throw darts at a square; how many hit the circle in it."""
    generator = np.random.default_rng(task)
    inside = 0
    for step in range(1, STEPS + 1):
        points = generator.random((darts // STEPS, 2))
        inside += int(((points**2).sum(axis=1) <= 1).sum())
        progress.report.remote(task, step * (darts // STEPS))
    # The last report has arrived before the result is there: calls of one caller keep their order.
    ray.get(progress.get_progress.remote())
    return inside


@click.command(context_settings={"show_default": True})
@click.option("--tasks", default=8, type=click.IntRange(1), help="Tasks that throw.")
@click.option("--darts", default=50_000, type=click.IntRange(STEPS), help="Darts of each task.")
@click.option(
    "--every",
    default=0.05,
    type=click.FloatRange(0),
    help="Seconds between two looks at the progress.",
    show_default=True,
)
@click.option("--quiet/--no-quiet", default=False, help="Do not show the progress on stderr.")
def main(tasks: int, darts: int, every: float, quiet: bool) -> None:
    """Estimate pi."""
    ray.init()
    darts -= darts % STEPS
    progress = Progress.remote(tasks * darts)
    results = [throw.remote(task, darts, progress) for task in range(tasks)]
    done = 0.0
    while done < 1:
        done = ray.get(progress.get_progress.remote())
        if not quiet:
            print(f"\r{done:4.0%} of the darts are thrown", end="\n" if done == 1 else "", file=sys.stderr)
        time.sleep(every)
    pi = 4 * sum(ray.get(results)) / (tasks * darts)
    reports = ray.get(progress.get_reports.remote())
    print(f"{len(reports)} tasks have thrown {sum(reports.values())} darts")
    print(f"pi is about {pi:.5f}, off by {abs(pi - np.pi):.5f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
