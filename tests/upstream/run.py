"""Run the test suites of other projects on Ray, on dualray's processes and in its simulation, and compare the engines.

    python -m tests.upstream.run                                        # the suites, and where each source is expected
    python -m tests.upstream.run evotorch --engine ray --source DIR     # once: which tests are to be held
    python -m tests.upstream.run evotorch --engine real --source DIR
    python -m tests.upstream.run evotorch --engine sim --source DIR --repeats 20
    python -m tests.upstream.run rays_core --engine sim --source DIR --files actor actor_pool    # these files alone
    python -m tests.upstream.run rays_core --engine ray --source DIR --missing    # what fails on dualray, on Ray
    python -m tests.upstream.run --compare                              # the table, and each test that is missing

DIR is a checkout of the suite's project at the commit that the list names. Environments and results are kept below
DUALRAY_UPSTREAM, which is ~/.cache/dualray-upstream unless it is set.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

from tests.upstream.suites import RAY, SUITES, Suite

ROOT: Final = Path(__file__).resolve().parents[2]
ENGINES: Final = ("ray", "real", "sim")
DATA: Final = Path(os.environ.get("DUALRAY_UPSTREAM", "~/.cache/dualray-upstream")).expanduser()
FILE_SECONDS: Final = 1800
"""A pytest that runs longer is ended; the tests that it had not begun count as missing."""

Rows = dict[str, dict[str, Any]]


def environment(suite: Suite) -> Path:
    """The Python of the suite's environment, which is made when it is not there or when its packages changed."""
    directory = DATA / suite.name
    python = directory / "venv/bin/python"
    with (ROOT / "pyproject.toml").open("rb") as file:
        own: list[str] = tomllib.load(file)["project"]["dependencies"]
    packages = ["pytest", "pytest-timeout", *suite.packages, *own, RAY]
    wanted, made = "\n".join(packages), directory / "packages.txt"
    if made.exists() and made.read_text() == wanted:
        return python
    directory.mkdir(parents=True, exist_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", directory / "venv"], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *packages], check=True)
    found = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(found, check=True, capture_output=True, text=True).stdout.strip())
    (site / "dualray_checkout.pth").write_text(f"{ROOT}\n")
    (site / "dualray_later.pth").write_text((ROOT / "dualray_as_ray.pth").read_text())
    made.write_text(wanted)
    return python


def _every(suite: Suite) -> dict[str, list[str]]:
    """Each path of the suite, as the argument of its pytest."""
    return {path: [path] for path in suite.paths}


def _of_files(suite: Suite, names: list[str]) -> dict[str, list[str]]:
    """The paths with one of these names, without `test_` and `.py`."""
    chosen = [path for path in suite.paths if Path(path).stem.removeprefix("test_") in names]
    if len(chosen) < len(set(names)):
        raise SystemExit(f"{suite.name} has no file for one of {', '.join(names)}")
    return {path: [path] for path in chosen}


def _missing(suite: Suite) -> dict[str, list[str]]:
    """The tests that have failed on one of dualray's engines, by path."""
    rows = [row for engine in ENGINES[1:] for row in kept_rows(suite, engine).values()]
    failed = sorted({row["test"] for row in rows if row["outcome"] == "failed"})
    found = {path: [test for test in failed if test.startswith(path)] for path in suite.paths}
    return {path: tests for path, tests in found.items() if tests}


def run(suite: Suite, engine: str, source: Path, options: list[str], chosen: dict[str, list[str]]) -> Rows:
    """Run the chosen tests of each path in a pytest of its own, and return how each test ended.

    The file of outcomes keeps its rows of other tests.
    """
    python = str(environment(suite))
    log = DATA / suite.name / f"{engine}.log"
    outcomes = DATA / suite.name / f"{engine}.jsonl"
    selected = {test for tests in chosen.values() for test in tests}
    whole = tuple(selected.intersection(chosen))
    others = [row for test, row in _read(outcomes).items() if test not in selected and not test.startswith(whole)]
    outcomes.write_text("".join(json.dumps(row) + "\n" for row in others))
    roots = [str(ROOT), *(str(source / root) for root in suite.roots), str(Path(__file__).parent / "plugins")]
    variables = (
        os.environ | suite.environment | {"UPSTREAM_OUTCOMES": str(outcomes), "PYTHONPATH": os.pathsep.join(roots)}
    )
    variables["UPSTREAM_ENGINE"] = engine
    variables["PATH"] = os.pathsep.join([str(Path(python).parent), variables["PATH"]])  # tests start `python`
    if engine == "ray":
        variables["RAY_AUTH_MODE"] = "disabled"  # else no test can join the cluster that `ray start` has made for it
    else:
        variables |= {"DUALRAY_AS_RAY": "1", "DUALRAY_MODE": engine}
    plugins = ["-p", "upstream_outcomes", *(["-p", suite.plugin] if suite.plugin else [])]
    with log.open("w") as file:
        for path, tests in chosen.items():
            command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *plugins]
            command += [*suite.options, *tests, *options]
            started = time.monotonic()
            try:
                done = subprocess.run(
                    command, cwd=source, env=variables, stdout=file, stderr=file, timeout=FILE_SECONDS
                ).returncode
            except subprocess.TimeoutExpired:
                done = -1
            print(f"{path}: exit code {done}, {time.monotonic() - started:.1f} s", flush=True)
    return _read(outcomes)


def kept_rows(suite: Suite, engine: str) -> Rows:
    """How each test of a suite has ended on an engine, in the last run of the test."""
    return _read(DATA / suite.name / f"{engine}.jsonl")


def _read(outcomes: Path) -> Rows:
    if not outcomes.exists():
        return {}
    rows = (json.loads(line) for line in outcomes.read_text().splitlines())
    return {row["test"]: row for row in rows}


def compare(suite: Suite, verbose: bool) -> None:
    """Print how many of the tests that pass on Ray pass on dualray, and each that does not with its reason."""
    kept = {engine: kept_rows(suite, engine) for engine in ENGINES}
    expected = [test for test, row in kept["ray"].items() if row["outcome"] == "passed"]
    line = f"{suite.name}: {len(expected)} pass on Ray ({_seconds(kept['ray'], expected):.0f} s)"
    missing: list[str] = []
    for engine in ENGINES[1:]:
        if not kept[engine]:
            continue
        passed = [test for test in expected if kept[engine].get(test, {}).get("outcome") == "passed"]
        share = 100 * len(passed) / len(expected) if expected else 100.0
        line += f"; {engine} {len(passed)} ({share:.1f} %, {_seconds(kept[engine], expected):.0f} s)"
        missing += [
            f"  {engine} {test}: {kept[engine].get(test, {}).get('reason', 'it was not run')}"
            for test in expected
            if test not in passed
        ]
    print(line)
    if verbose:
        print("\n".join(missing))


def _seconds(rows: Rows, tests: list[str]) -> float:
    return float(sum(rows[test]["seconds"] for test in tests if test in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", nargs="?", choices=sorted(SUITES), help="the suite to run")
    parser.add_argument("--engine", choices=ENGINES, default="sim", help="what runs it (sim)")
    parser.add_argument("--source", type=Path, help="a checkout of the suite's project")
    parser.add_argument("--repeats", type=int, default=1, help="runs, whose outcomes are to be equal (1)")
    some = parser.add_mutually_exclusive_group()
    some.add_argument("--files", nargs="+", metavar="NAME", help="run the tests of these files alone: actor actor_pool")
    some.add_argument("--missing", action="store_true", help="run the tests alone that failed on real or on sim")
    parser.add_argument("--compare", action="store_true", help="print the kept results in place of running")
    parser.add_argument("--pytest", default="", help="more options for pytest, as one argument: --pytest='-k name'")
    arguments = parser.parse_args()
    chosen = [SUITES[arguments.suite]] if arguments.suite else list(SUITES.values())
    if arguments.compare:
        for suite in chosen:
            compare(suite, verbose=True)
    elif arguments.suite is None:
        for suite in chosen:
            print(f"{suite.name}: {suite.source} at {suite.commit}")
    elif arguments.source is None:
        parser.error(f"--source is needed: a checkout of {chosen[0].source} at {chosen[0].commit}")
    else:
        _repeat(chosen[0], arguments)


def _repeat(suite: Suite, arguments: argparse.Namespace) -> None:
    first: dict[str, str] | None = None
    chosen = _every(suite)
    if arguments.missing:
        chosen = _missing(suite)
    elif arguments.files:
        chosen = _of_files(suite, arguments.files)
    for _ in range(arguments.repeats):
        rows = run(suite, arguments.engine, arguments.source.resolve(), shlex.split(arguments.pytest), chosen)
        outcomes = {test: row["outcome"] for test, row in rows.items()}
        print(dict(Counter(outcomes.values())), flush=True)
        for test in sorted(outcomes | (first or outcomes)):
            if first is not None and outcomes.get(test) != first.get(test):
                print(f"not equal: {test}: {first.get(test)}, then {outcomes.get(test)}")
        first = first or outcomes
    compare(suite, verbose=False)


if __name__ == "__main__":
    main()
