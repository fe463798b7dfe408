"""`python -m tests.both_modes`: see tests/both_modes/__init__.py."""

from __future__ import annotations

import argparse
import sys

from tests.both_modes.runs import as_line, compare, compare_all

GOAL_PERCENT = 95


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.both_modes", description="small scenarios in both modes")
    parser.add_argument("--runs", type=int, default=200, help="scenarios")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    parser.add_argument("--jobs", type=int, default=1, help="at a time; what is slow for want of a CPU differs sooner")
    parser.add_argument("--one", type=int, default=None, help="of one number alone, what came of it, as JSON")
    options = parser.parse_args()
    if options.one is not None:
        print(as_line(compare(options.one)))
        return 0
    same = 0
    for found in compare_all(range(options.first, options.first + options.runs), jobs=options.jobs):
        same += found.is_same
        print(f"{'same' if found.is_same else 'DIFFERS':8} {found}", flush=True)
    percent = 100 * same / options.runs
    print(f"{same} of {options.runs} scenarios have the same outcome in both modes: {percent:.1f} %")
    return 0 if percent >= GOAL_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
