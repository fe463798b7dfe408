"""Conway's game of life on a board that is cut into strips, each kept by an actor that talks to its neighbours.

Shows actors that hold handles to one another and exchange borders directly: an actor answers for its borders of a
generation with references, its neighbours take them as arguments, and the driver only says how far to go. No two
strips are ever more than one generation apart, and nobody waits for the whole board.

    python examples/core/game_of_life.py --generations 50
    dualray run examples/core/game_of_life.py --mode sim --nodes 9 -- --strips 9 --size 90
"""

import click
import numpy as np

import dualray as ray


@ray.remote(num_cpus=0)
class Strip:
    """Some rows of the board."""

    def __init__(self, cells):
        self.cells = cells

    @ray.method(num_returns=2)
    def borders(self):
        """Its first and its last row."""
        return self.cells[0], self.cells[-1]

    def step(self, above, below):
        """The next generation, given the rows next to it; how many cells are alive."""
        board = np.vstack([above, self.cells, below])
        around = sum(
            np.roll(board, (down, right), axis=(0, 1))
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if (down, right) != (0, 0)
        )
        born_or_stays = (around == 3) | ((board == 1) & (around == 2))
        self.cells = born_or_stays[1:-1].astype(np.uint8)
        return int(self.cells.sum())

    def get_cells(self):
        return self.cells


def play(board, strips, generations):
    """The board after some generations, and how many cells were alive in each."""
    actors = [Strip.remote(part) for part in np.array_split(board, strips)]
    alive = []
    for _ in range(generations):
        # All borders are asked for before any step: calls of one caller keep their order.
        borders = [actor.borders.remote() for actor in actors]
        alive.append(
            [
                actor.step.remote(borders[index - 1][1], borders[(index + 1) % strips][0])
                for index, actor in enumerate(actors)
            ]
        )
    counts = [sum(ray.get(generation)) for generation in alive]
    return np.vstack(ray.get([actor.get_cells.remote() for actor in actors])), counts


def glider_gun_board(size, seed):
    """A glider in the upper left corner, and a soup of cells below."""
    board = np.zeros((size, size), dtype=np.uint8)
    soup = np.random.default_rng(seed).random((size // 2, size)) < 0.3
    board[size - size // 2 :] = soup
    board[1:4, 1:4] = [[0, 1, 0], [0, 0, 1], [1, 1, 1]]
    return board


@click.command(context_settings={"show_default": True})
@click.option("--size", default=24, type=click.IntRange(8), help="Rows and columns; the edges meet.")
@click.option("--strips", default=4, type=click.IntRange(1), help="Actors, each with some of the rows.")
@click.option("--generations", default=30, type=click.IntRange(1), help="How far to go.")
@click.option("--seed", default=7, help="Of the first board.")
def main(size: int, strips: int, generations: int, seed: int) -> None:
    """Play the game of life."""
    ray.init()
    board, counts = play(glider_gun_board(size, seed), min(strips, size), generations)
    for row in board:
        print("".join(".#"[cell] for cell in row))
    print(f"alive: {counts[0]} cells after the first generation, {counts[-1]} after {generations}")
    ray.shutdown()


if __name__ == "__main__":
    main()
