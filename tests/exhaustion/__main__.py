"""See the package."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import chain
from queue import Queue
from subprocess import PIPE
from typing import Any

from tests.exhaustion.other_user import as_other_user, why_no_other_user, why_no_own_disk
from tests.exhaustion.runs import DIRECTORIES, KINDS, OF_PROCESSES, RESOURCES, in_sessions

BLOCK = 25
"""So many runs share a session, unless one goes wrong."""


def main() -> int:
    parser = argparse.ArgumentParser(description="take resources from the processes of a session")
    parser.add_argument("--runs", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="the first run's seed (default 0)")
    parser.add_argument("--resources", nargs="+", choices=RESOURCES, help="what to take (default: all that one can)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="the processes to take it from")
    parser.add_argument("--jobs", type=int, default=4, help="sessions at a time (default 4), each of a user of its own")
    parser.add_argument("--one-session", action="store_true", help="run here, and print a line of JSON for each run")
    options = parser.parse_args()
    has_user, has_disk = why_no_other_user() == "", why_no_own_disk() == ""
    if options.resources is None:
        options.resources = OF_PROCESSES if has_user else [each for each in OF_PROCESSES if each != "threads"]
        options.resources = [*options.resources, *DIRECTORIES] if has_disk else options.resources
    seeds = range(options.seed, options.seed + options.runs)
    if options.one_session:
        for outcome in in_sessions(seeds, options.resources, options.kinds):
            print(json.dumps(asdict(outcome)), flush=True)
        return 0
    print(f"takes {', '.join(options.resources)}", flush=True)
    return _sum_up(seeds, options, has_user=has_user, has_disk=has_disk)


def _sum_up(seeds: range, options: argparse.Namespace, *, has_user: bool, has_disk: bool) -> int:
    """Run the seeds in several sessions, and print what was wrong, and counts."""
    jobs = options.jobs if has_user else 1

    def run(block: range) -> list[dict[str, Any]]:
        words = ["-m", "tests.exhaustion", "--one-session", "--seed", str(block.start), "--runs", str(len(block))]
        words += ["--resources", *options.resources, "--kinds", *options.kinds]
        number = numbers.get()
        try:
            done = as_other_user(words, number=number, has_own_disk=has_disk, stdout=PIPE, stderr=PIPE)
        finally:
            numbers.put(number)
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(found) < len(block):
            what = f"the program ended after {len(found)} of {len(block)} runs, with {done.returncode}"
            lost = {"seed": block.start + len(found), "what": what, "errors": [], "elapsed_s": 0.0}
            found.append(lost | {"wrong": done.stderr[-3000:]})
        return found

    numbers: Queue[int] = Queue()
    for number in range(jobs):
        numbers.put(number)
    errors: Counter[str] = Counter()
    wrong, count, began_s, slowest_s = 0, 0, time.monotonic(), 0.0
    with ThreadPoolExecutor(jobs) as pool:
        blocks = [seeds[at : at + BLOCK] for at in range(0, len(seeds), BLOCK)]
        for outcome in chain.from_iterable(pool.map(run, blocks)):
            count += 1
            errors.update(error.split(":")[0] for error in outcome["errors"])
            slowest_s = max(slowest_s, outcome["elapsed_s"])
            if outcome["wrong"]:
                wrong += 1
                print(f"seed {outcome['seed']}: {outcome['what']}\n    {outcome['wrong']}", flush=True)
    print(
        f"{count} runs in {time.monotonic() - began_s:.0f} s, the slowest {slowest_s:.1f} s: {wrong} wrong; "
        f"errors: {dict(errors)}"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
