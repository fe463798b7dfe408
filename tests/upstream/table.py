"""Two pages made of what `tests.upstream.run` has kept: counts of tests that pass, and tests that do not.

    python -m tests.upstream.table             # print the counts
    python -m tests.upstream.table --write     # docs/ray_tests.md and tests/upstream/missing.md

A test counts as missing on an engine when it fails there, unless it is known to fail on Ray, by a kept run or by
`fails_on_ray`. All others are counted with those that pass there.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.upstream.fails_on_ray import FAILS_ON_RAY
from tests.upstream.named_reasons import NAMED
from tests.upstream.run import ROOT, kept_rows
from tests.upstream.suites import SUITES

SUITE: Final = SUITES["rays_core"]
COUNTS: Final = ROOT / "docs" / "ray_tests.md"
MISSING: Final = ROOT / "tests" / "upstream" / "missing.md"
ENGINES: Final = ("real", "sim")

APART: Final = 7
"""The first so many of REASONS say that a test needs what is not public in Ray: it is counted apart."""

REASONS: Final = (
    ("a fixture of Ray's own tests that starts its daemons, its dashboard or its control plane", r"available fixtures"),
    ("Ray's command line", r"No such file or directory: 'ray'|'ray (start|stop)|\['ray', "),
    ("the Ray Client", r"ray_client|client_test_utils|ClientObjectRef"),
    ("errors that Ray's control plane publishes", r"error_pubsub|publish_error|log_pubsub"),
    (
        "private to Ray",
        r"is private to Ray|is not in dualray|'function' object|AutoscalingCluster|_function_descriptor",
    ),
    ("put(_owner=), which Ray has removed", r"_owner|gen_object_ref|Creator|Owner\.set_object_ref"),
    ("Ray's call that frees by force, which is private", r"ObjectFreedError|freed"),
    ("a program of its own cannot join a simulation", r"head of a simulation"),
    ("a program of its own fails", r"CalledProcessError.*dualray.as_ray"),
    ("virtual workers are no processes of the system", r"NoSuchProcess|PermissionError|ProcessLookupError"),
    ("a message in Ray's words", r"assert '.*' (==|in) '|AssertionError: assert '|Regex pattern did not match"),
    ("a condition that does not come true", r"condition wasn't met"),
    ("an error that is not raised", r"DID NOT RAISE"),
    ("it takes longer than a minute", r"Timeout \("),
    ("a socket cannot have the address of a virtual node", r"Cannot assign requested address"),
)
"""What stands in the way, by what the error says; the first that fits."""


def rows(engine: str) -> dict[str, dict[str, Any]]:
    """How each of Ray's own tests has ended, by its name without the path."""
    return {test.partition("tests/test_")[2]: row for test, row in kept_rows(SUITE, engine).items()}


def libraries() -> tuple[list[str], list[str]]:
    """A row for each library's suite, and one for each of its tests that passes on Ray and not on dualray."""
    table: list[str] = []
    missing: list[str] = []
    for suite in sorted(SUITES.values(), key=lambda each: each.name):
        kept = {engine: kept_rows(suite, engine) for engine in ("ray", *ENGINES)}
        if suite is SUITE or not all(kept[engine] for engine in ENGINES):
            continue
        passed = {engine: {test for test, row in found.items() if _has_passed(row)} for engine, found in kept.items()}
        held = passed["ray"] or kept["real"].keys() & kept["sim"].keys()
        cells = [f"[{suite.name}]({suite.source})", f"`{suite.commit}`", str(len(passed["ray"]))]
        cells += [str(len(passed[engine] & held)) for engine in ENGINES]
        cells += [f"{sum(found[test]['seconds'] for test in held if test in found):.0f}" for found in kept.values()]
        table.append(f"| {' | '.join(cells)} |")
        for engine in ENGINES:
            for test in sorted(passed["ray"] - passed[engine]):
                row = kept[engine].get(test, {"reason": "it was not run"})
                missing.append(
                    f"| {engine} | {suite.name}: `{test}` | {reason_of(test, row)} | {_quoted(row['reason'])} |"
                )
    return table, missing


def _has_passed(row: dict[str, Any]) -> bool:
    return bool(row["outcome"] == "passed")


_PRIVATE: Final = frozenset(words for words, _ in REASONS[:APART])


def _has_failed(row: dict[str, Any] | None) -> bool:
    return row is not None and row["outcome"] != "passed"


def _passes_on_ray(test: str, row: dict[str, Any] | None) -> bool:
    return test.partition("[")[0] not in FAILS_ON_RAY if row is None else row["outcome"] == "passed"


def reason_of(test: str, row: dict[str, Any]) -> str:
    """Why a test is missing, in words."""
    named = NAMED.get(test.partition("[")[0])
    if named is not None:
        return named
    error = str(row["reason"])
    return next((words for words, pattern in REASONS if re.search(pattern, error)), "what it says differs")


def pages() -> tuple[str, str]:
    """The texts of COUNTS and of MISSING."""
    kept = {engine: rows(engine) for engine in ("ray", *ENGINES)}
    known = sorted(kept["real"] | kept["sim"])
    counted = [test for test in known if _passes_on_ray(test, kept["ray"].get(test))]
    counted = [test for test in counted if kept["real"].get(test, kept["sim"].get(test, {}))["outcome"] != "skipped"]
    files: dict[str, Counter[str]] = {}
    lines: list[str] = []
    for test in counted:
        count = files.setdefault(test.partition(".py")[0], Counter())
        if any(
            reason_of(test, kept[engine][test]) in _PRIVATE for engine in ENGINES if _has_failed(kept[engine].get(test))
        ):
            count["apart"] += 1
            lines += [
                f"| {engine} | `{test}` | {reason_of(test, row)} | {_quoted(row['reason'])} |"
                for engine in ENGINES
                if _has_failed(row := kept[engine].get(test)) and row is not None
            ]
            continue
        count["all"] += 1
        for engine in ENGINES:
            row = kept[engine].get(test)
            count[f"{engine} ran"] += row is not None
            count[engine] += row is not None and row["outcome"] == "passed"
            if row is not None and row["outcome"] != "passed":
                lines.append(f"| {engine} | `{test}` | {reason_of(test, row)} | {_quoted(row['reason'])} |")
    total: Counter[str] = Counter()
    for count in files.values():
        total.update(count)
    table = [f"| `test_{name}.py` | {_cells(count)} |" for name, count in sorted(files.items())]
    head = _HEAD.format(source=SUITE.source, commit=SUITE.commit, real=_share(total, "real"), sim=_share(total, "sim"))
    suites, more = libraries()
    counts = "\n".join([head, *table, f"| all | {_cells(total)} |", "", _LIBRARIES_HEAD, *suites, ""])
    return counts, "\n".join([_MISSING_HEAD.format(source=SUITE.source, commit=SUITE.commit), *lines, *more, ""])


def _quoted(text: str) -> str:
    first = re.sub(r"/\S*/(?=\w+\.py|python\b)|/tmp/\S+", "", text).replace("|", "/").replace("\n", " ")
    return f"`{first[:140].replace('`', '')}`"


def _cells(count: Counter[str]) -> str:
    cells = [str(count["all"]), *(str(count[each]) if count[f"{each} ran"] else "-" for each in ENGINES)]
    return " | ".join([*cells, str(count["apart"] or "")])


def _share(total: Counter[str], engine: str) -> str:
    return f"{total[engine]} of {total[f'{engine} ran']} ({100 * total[engine] / max(total[f'{engine} ran'], 1):.0f} %)"


_HEAD: Final = """\
# Ray's own tests

The first table on this page shows how many tests of each file of Ray's own test suite pass with dualray. Ray's tests
that run with dualray come from {source}, commit {commit}. The tests of Ray
that run with dualray cover tasks, actors, objects, generators, placement groups, scheduling, failures and utilities.

In the first table on this page, the column `counted` contains the number of tests that pass on Ray 2.60, or that we did
not run on Ray 2.60. The columns `real` and `sim` contain how many of the tests in the column `counted` pass with
dualray in real mode and in sim mode. Only the column `apart` includes the tests that need internal parts of Ray. On
this page, *internal parts of Ray* means the daemons, the dashboard, the control plane, the command line, Ray Client and
`ray._private`.

Of Ray's tests that ran with dualray, {real} pass in real mode, and {sim} pass in sim mode.
A dash in the column `real` or `sim` means that no test of the file ran in this mode.

`python -m tests.upstream.run rays_core --engine real` runs Ray's tests with dualray in real mode. With `--engine sim`,
`tests.upstream.run` runs Ray's tests in sim mode. `python -m tests.upstream.table --write` writes `docs/ray_tests.md`
from the results of Ray's tests in real mode and in sim mode. The file `tests/upstream/missing.md` lists each of Ray's
tests that does not pass with dualray, and the reason.

| file | counted | real | sim | apart |
|---|---|---|---|---|"""

_LIBRARIES_HEAD: Final = """\
## Test suites of libraries

The unchanged test suites of several libraries that use Ray run on dualray. In the table of libraries, the column `Ray`
contains the number of a library's tests that pass on Ray 2.60. The columns `real` and `sim` say how many of the tests
that pass on Ray also pass with dualray in real mode and in sim mode. No test of evotorch runs on Ray 2.60, because
evotorch's tests need `local_mode`, which Ray 2.60 no longer has. For evotorch, the columns `real` and `sim` count every
test that passes with dualray, without a comparison with Ray. The columns `s on Ray`, `s in real mode` and `s in sim
mode` contain the seconds that the tests took on two cores. The times of the libraries' tests are inexact, because other
programs sometimes used the machine's two cores while the tests ran.

| library | commit | Ray | real | sim | s on Ray | s in real mode | s in sim mode |
|---|---|---|---|---|---|---|---|"""

_MISSING_HEAD: Final = """\
# Ray's own tests, and tests of libraries, that do not pass

Ray's own tests come from {source}, commit {commit}. `python -m tests.upstream.table --write` writes this page.

| engine | test | why | the error's first line |
|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {COUNTS.name} and {Path(MISSING).name}")
    counts, missing = pages()
    if parser.parse_args().write:
        COUNTS.write_text(counts)
        MISSING.write_text(missing)
    print(counts)


if __name__ == "__main__":
    main()
