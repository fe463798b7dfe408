"""See the package."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.exhaustion.other_user import as_other_user, why_no_other_user
from tests.exhaustion.runs import KINDS, RESOURCES, in_sessions


def main() -> int:
    parser = argparse.ArgumentParser(description="take resources from the processes of a session")
    parser.add_argument("--runs", type=int, default=200, help="how many (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="the first run's seed (default 0)")
    parser.add_argument("--resources", nargs="+", choices=RESOURCES, default=RESOURCES, help="what to take")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="the processes to take it from")
    options = parser.parse_args()
    if "threads" in options.resources and why_no_other_user() == "":
        return as_other_user(["-m", "tests.exhaustion", *sys.argv[1:]]).returncode
    seeds = range(options.seed, options.seed + options.runs)
    errors: Counter[str] = Counter()
    wrong, began_s, slowest_s = 0, time.monotonic(), 0.0
    for outcome in in_sessions(seeds, options.resources, options.kinds):
        errors.update(error.split(":")[0] for error in outcome.errors)
        slowest_s = max(slowest_s, outcome.elapsed_s)
        if outcome.wrong:
            wrong += 1
            print(f"seed {outcome.seed}: {outcome.what}\n    {outcome.wrong}", flush=True)
    print(
        f"{options.runs} runs in {time.monotonic() - began_s:.0f} s, the slowest {slowest_s:.1f} s: {wrong} wrong; "
        f"errors: {dict(errors)}"
    )
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
