"""Map-reduce over files: the words of many files are counted by mappers, shuffled, and added up by reducers.

Shows tasks with several results (`num_returns`): each mapper returns a part for each reducer, and a reducer takes one
part of each mapper as arguments. No part passes through the driver, and a mapper whose worker dies is run again.

    python examples/core/map_reduce.py README.md docs/*.md
    dualray run examples/core/map_reduce.py --mode sim --nodes 6 -- --reducers 12
"""

import random
import re
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import click

import dualray as ray


@ray.remote
def count_words(path, reducers):
    """The words of one file, in as many parts as there are reducers. Equal words go to the same one."""
    parts = [Counter() for _ in range(reducers)]
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            for word in re.findall(r"[a-z]+", line.lower()):
                parts[zlib.crc32(word.encode()) % reducers][word] += 1  # not hash(): it differs between processes
    return parts if reducers > 1 else parts[0]


@ray.remote
def add_up(*parts):
    """All that the mappers have found of the words of one reducer."""
    return sum(parts, Counter())


@ray.remote
def most_common(count, *totals):
    """The most frequent words of some counters."""
    merged = sum(totals, Counter())
    return sorted(merged.items(), key=lambda item: (-item[1], item[0]))[:count], len(merged), merged.total()


def map_reduce(files, reducers, top):
    """The most frequent words of all files, how many different ones there are, and how many in all."""
    mapper = count_words.options(num_returns=reducers)
    parts = [mapper.remote(str(path), reducers) for path in files]
    if reducers == 1:
        parts = [[part] for part in parts]
    totals = [add_up.remote(*of_one_reducer) for of_one_reducer in zip(*parts, strict=True)]
    return ray.get(most_common.remote(top, *totals))


def write_books(directory, count):
    """Texts to count, the same ones each time."""
    generator = random.Random(2017)
    words = ["".join(generator.choices("aeiounrstlm", k=generator.randint(2, 7))) for _ in range(400)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]  # as words are distributed in real texts
    for number in range(count):
        lines = (" ".join(generator.choices(words, weights, k=12)) for _ in range(60))
        Path(directory, f"book-{number}.txt").write_text("\n".join(lines), encoding="utf-8")


@click.command(context_settings={"show_default": True})
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--reducers", default=4, type=click.IntRange(1), help="Parts into which the words are divided.")
@click.option("--top", default=5, type=click.IntRange(1), help="How many words to print.")
def main(files: tuple[Path, ...], reducers: int, top: int) -> None:
    """Count the words of files."""
    ray.init()
    with tempfile.TemporaryDirectory() as directory:
        if not files:
            write_books(directory, 8)
            files = sorted(Path(directory).glob("*.txt"))
        words, different, total = map_reduce(files, reducers, top)
    print(f"{len(files)} files, {total} words, {different} different ones")
    for word, count in words:
        print(f"{count:6} {word}")
    ray.shutdown()


if __name__ == "__main__":
    main()
