"""Draw the points of each game, and their mean over a hundred games; say how the last hundred compare with the first.

python examples/rl_pong/plot.py scores.txt curve.svg
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # its neighbours are found from wherever it is started

from examples.rl_pong.driver import GAMES_REMEMBERED, comparison


def draw(scores: list[float], path: Path) -> None:
    """Write the picture, in the format that the path's ending says."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(scores) + 1), scores, ".", color="0.75", markersize=3, label="a game")
    if len(scores) >= GAMES_REMEMBERED:
        means = np.convolve(scores, np.full(GAMES_REMEMBERED, 1 / GAMES_REMEMBERED), mode="valid")
        label = f"mean of the last {GAMES_REMEMBERED}"
        axes.plot(range(GAMES_REMEMBERED, len(scores) + 1), means, color="tab:blue", label=label)
    axes.set_xlabel("games")
    axes.set_ylabel("points won less points lost")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main(
    scores: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="The file that --scores has written.")],
    picture: Annotated[Path, typer.Argument(help="What to draw: an .svg, .png or .pdf.")],
) -> None:
    """Draw the curve of a training."""
    points = [float(line) for line in scores.read_text().split()]
    if not points:
        print(f"{scores} has no games yet", file=sys.stderr)
        raise typer.Exit(1)
    draw(points, picture)
    print(f"{len(points)} games: {comparison(points)}")


if __name__ == "__main__":
    typer.run(main)
