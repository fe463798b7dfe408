"""A sharded key-value store that survives kills: no write that was answered is lost, and none happens twice.

Shows actors that restart (`max_restarts`) and whose lost calls are made again (`max_task_retries`), with their state in
a log on disk that a restarted shard reads. A call that was lost may have happened already, so each write has an id and
the log remembers it: that makes repeating it harmless. Some shards are killed from outside while clients write, and one
ends its process in the middle of a write.

    python examples/core/key_value_store.py --kills 6
    dualray run examples/core/key_value_store.py --mode sim --nodes 3 -- --shards 6 --clients 8
"""

import json
import os
import tempfile
import zlib
from pathlib import Path

import click

import dualray as ray


@ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)
class Shard:
    """Some of the keys. What it answers is on disk before."""

    def __init__(self, path, dies_at):
        self.path = Path(path)
        self.dies_at = dies_at
        self.counts = {}
        self.seen = set()
        self.lives = 1
        if self.path.exists():
            for line in self.path.read_text().splitlines():
                self.remember(json.loads(line))
        self.append({"life": self.lives})

    def append(self, entry):
        with self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def remember(self, entry):
        if "life" in entry:
            self.lives = entry["life"] + 1
        else:
            self.seen.add(entry["id"])
            self.counts[entry["key"]] = self.counts.get(entry["key"], 0) + entry["amount"]

    def add(self, write_id, key, amount):
        """Add to a counter, once however often it is called with this id; its new value."""
        if write_id not in self.seen:
            entry = {"id": write_id, "key": key, "amount": amount}
            self.append(entry)
            self.remember(entry)
            if len(self.seen) == self.dies_at and self.lives == 1:
                os._exit(1)  # after the write, before the answer: the caller must ask again
        return self.counts[key]

    def get_all(self):
        return self.counts

    def get_lives(self):
        return self.lives


class Store:
    """What clients see: which shard has a key. It can be passed to tasks, with its handles."""

    def __init__(self, directory, shards, dies_at):
        self.shards = [
            Shard.remote(str(Path(directory, f"shard-{number}.log")), dies_at if number == 0 else 0)
            for number in range(shards)
        ]

    def add(self, write_id, key, amount):
        return self.shards[zlib.crc32(key.encode()) % len(self.shards)].add.remote(write_id, key, amount)

    def get_all(self):
        return {
            key: count for shard in ray.get([s.get_all.remote() for s in self.shards]) for key, count in shard.items()
        }


@ray.remote
def client(number, store, keys, writes):
    """Counts up all keys in turn, each write waiting for its answer."""
    for write in range(writes):
        key = keys[(number + write) % len(keys)]
        ray.get(store.add(f"{number}/{write}", key, 1))
    return writes


@click.command(context_settings={"show_default": True})
@click.option("--shards", default=3, type=click.IntRange(1), help="Actors that keep the keys.")
@click.option("--clients", default=2, type=click.IntRange(1), help="Tasks that write.")
@click.option("--writes", default=30, type=click.IntRange(1), help="Writes of each client.")
@click.option(
    "--kills",
    default=3,
    type=click.IntRange(0),
    help="Shards that are killed from outside meanwhile.",
    show_default=True,
)
def main(shards: int, clients: int, writes: int, kills: int) -> None:
    """Write into a store whose shards are killed, and check that nothing is lost and nothing is doubled."""
    ray.init()
    keys = [f"key-{number}" for number in range(6)]
    with tempfile.TemporaryDirectory() as directory:
        store = Store(directory, shards, dies_at=5)
        writing = [client.remote(number, store, keys, writes) for number in range(clients)]
        for number in range(kills):
            shard = store.shards[number % shards]
            ray.get(shard.get_lives.remote())  # it lives, and may be at work
            ray.kill(shard, no_restart=False)
        written = sum(ray.get(writing))
        counts = store.get_all()
        lives = ray.get([shard.get_lives.remote() for shard in store.shards])
    print(f"{written} writes, {sum(counts.values())} in the store")
    print(" ".join(f"{key}={counts[key]}" for key in keys if key in counts))
    print(f"shards have died: {'yes' if sum(lives) > shards else 'no'}")
    ray.shutdown()


if __name__ == "__main__":
    main()
