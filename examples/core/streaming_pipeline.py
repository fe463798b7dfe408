"""A pipeline of three stages: read, clean, count; items flow through it as they are ready.

Shows a generator as its source (`num_returns="streaming"`: each batch is there before the next one is read), references
that go from stage to stage without ever being read by the driver, backpressure (the source waits when nobody takes its
batches, and at most `window` are under way, so that a slow stage holds up the reading and memory stays bounded), and
results that are taken as they come (`wait`) and put together in order. The stages work at the same time.

    python examples/core/streaming_pipeline.py --batches 24
    dualray run examples/core/streaming_pipeline.py --mode sim --nodes 4 -- --window 16
"""

import random
from collections import Counter

import click

import dualray as ray

WORDS = ["lorem", "ipsum", "dolor", "sit", "amet", "sadipscing", "elitr", "sed", "diam", "nonumy"]


@ray.remote(num_cpus=0, num_returns="streaming", _generator_backpressure_num_objects=4)
def read(batches, lines):
    """The source: batches of lines, as they would come from a socket or a log."""
    for batch in range(batches):
        generator = random.Random(batch)
        yield [" ".join(generator.choices(WORDS, k=12)) + generator.choice(".!?") for _ in range(lines)]


@ray.remote(num_cpus=0)
class Cleaner:
    """Takes lines apart."""

    def clean(self, lines):
        return [word.strip(".!?").upper() for line in lines for word in line.split()]


@ray.remote(num_cpus=0)
class Tally:
    """Keeps what it has seen, and says how many words that batch had."""

    def __init__(self):
        self.counts = Counter()

    def add(self, words):
        self.counts.update(words)
        return len(words)

    def result(self):
        return self.counts


class Stage:
    """Actors that take turns: calls go to the next one."""

    def __init__(self, actors):
        self.actors = actors
        self.turn = 0

    def next(self):
        self.turn += 1
        return self.actors[self.turn % len(self.actors)]


def flow(batches, window, lines):
    """Run all batches through the stages; words of each batch, and how often each word came."""
    cleaners = Stage([Cleaner.remote() for _ in range(3)])
    tallies = [Tally.remote() for _ in range(2)]
    stage = Stage(tallies)

    under_way = {}
    words = {}
    widest = 0
    for batch, raw in enumerate(read.remote(batches, lines)):
        if len(under_way) == window:  # backpressure: nothing goes in before something has come out
            take_one(under_way, words)
        clean = cleaners.next().clean.remote(raw)
        under_way[stage.next().add.remote(clean)] = batch
        widest = max(widest, len(under_way))
    while under_way:
        take_one(under_way, words)
    counts = sum(ray.get([tally.result.remote() for tally in tallies]), Counter())
    return [words[batch] for batch in range(batches)], counts, widest


def take_one(under_way, words):
    """Wait for the batch that comes out first."""
    [done], _ = ray.wait(list(under_way))
    words[under_way.pop(done)] = ray.get(done)


@click.command(context_settings={"show_default": True})
@click.option("--batches", default=24, type=click.IntRange(1), help="Batches that are read.")
@click.option("--window", default=6, type=click.IntRange(1), help="Batches under way at most.")
@click.option("--lines", default=20, type=click.IntRange(1), help="Lines of a batch.")
def main(batches: int, window: int, lines: int) -> None:
    """Count words in a stream of lines."""
    ray.init()
    words, counts, widest = flow(batches, window, lines)
    print(f"{len(words)} batches, {sum(words)} words, at most {widest} batches under way")
    for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]:
        print(f"{count:5} {word}")
    ray.shutdown()


if __name__ == "__main__":
    main()
