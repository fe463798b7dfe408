"""A tree of actors: each supervises its children, makes them, asks them, and makes them anew when they die.

Shows actors that make actors, handles that are passed on and returned, calls that fan out and come together again, and
`max_restarts`: a leaf that dies in the middle is restarted by the system, and its supervisor, which keeps what the leaf
had been told, tells it again. The sum at the root is right all the same.

    python examples/core/actor_tree.py --depth 3 --width 3
    dualray run examples/core/actor_tree.py --mode sim --nodes 5
"""

import os

import click

import dualray as ray


@ray.remote(num_cpus=0, max_restarts=1)
class Leaf:
    """Keeps a number. It has not heard of it when it was just made, or restarted."""

    def __init__(self):
        self.number = None

    def tell(self, number):
        self.number = number

    def total(self):
        return self.number

    def die(self):
        os._exit(1)


@ray.remote(num_cpus=0)
class Branch:
    """A supervisor of `width` children, branches or leaves."""

    def __init__(self, depth, width, first):
        self.leaves_each = width ** (depth - 1)
        self.depth = depth
        self.numbers = [first + index * self.leaves_each for index in range(width)]
        if depth == 1:
            self.children = [Leaf.remote() for _ in self.numbers]
            ray.get([leaf.tell.remote(number) for leaf, number in zip(self.children, self.numbers, strict=True)])
        else:
            self.children = [Branch.remote(depth - 1, width, number) for number in self.numbers]

    def total(self):
        totals = ray.get([child.total.remote() for child in self.children])
        if self.depth == 1:
            totals = [self.mended(index) if total is None else total for index, total in enumerate(totals)]
        return sum(totals)

    def mended(self, index):
        """The leaf has lost its memory: tell it again."""
        leaf = self.children[index]
        leaf.tell.remote(self.numbers[index])
        return ray.get(leaf.total.remote())  # calls of one caller keep their order

    def leaves(self):
        """Handles to all leaves below: from here, anybody can call them."""
        if self.depth == 1:
            return self.children
        return [leaf for below in ray.get([child.leaves.remote() for child in self.children]) for leaf in below]


@click.command(context_settings={"show_default": True})
@click.option("--depth", default=2, type=click.IntRange(1), help="Levels of branches.")
@click.option("--width", default=3, type=click.IntRange(1), help="Children of each.")
@click.option("--deaths", default=2, type=click.IntRange(0), help="Leaves that die.")
def main(depth: int, width: int, deaths: int) -> None:
    """Sum the numbers of a tree's leaves, before and after some of the leaves have died."""
    ray.init()
    root = Branch.remote(depth, width, 0)
    leaves = ray.get(root.leaves.remote())
    print(f"{len(leaves)} leaves, their sum is {ray.get(root.total.remote())}")

    fallen = 0
    for leaf in leaves[:: max(1, len(leaves) // max(1, deaths))][:deaths]:
        try:
            ray.get(leaf.die.remote())
        except ray.exceptions.RayActorError:
            fallen += 1
    forgotten = 0
    for leaf in leaves:
        while True:
            try:
                forgotten += ray.get(leaf.total.remote()) is None
                break
            except ray.exceptions.ActorUnavailableError:
                continue  # it is being restarted
    print(f"{fallen} leaves died, {forgotten} have forgotten their number")
    print(f"their sum is {ray.get(root.total.remote())}")
    ray.shutdown()


if __name__ == "__main__":
    main()
