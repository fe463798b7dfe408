"""How many CPU seconds a simulated suite spends in its own project's code, beside those in dualray.

    python -m tests.upstream.user_seconds modin --source DIR

py-spy samples the stacks of pytest and its children 100 times a second. A sample counts for dualray or for the suite's
project: for the innermost frame of either. The time of a library such as pandas counts for the code that calls it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from tests.upstream.run import ROOT, environment
from tests.upstream.suites import SUITES, Suite

RATE: Final = 100
_FILE: Final = re.compile(r"\((.+):\d+\)$")


def seconds(suite: Suite, source: Path) -> Counter[str]:
    """CPU seconds of the whole suite, by where they are spent."""
    python = environment(suite)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "py-spy"], check=True)
    roots = [str(ROOT), *(str(source / root) for root in suite.roots), str(Path(__file__).parent / "plugins")]
    variables = os.environ | suite.environment | {"DUALRAY_AS_RAY": "1", "DUALRAY_MODE": "sim"}
    variables |= {"PYTHONPATH": os.pathsep.join(roots), "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    variables |= {"UPSTREAM_ENGINE": "sim", "UPSTREAM_OUTCOMES": os.devnull}
    plugins = ["-p", "upstream_outcomes", *(["-p", suite.plugin] if suite.plugin else [])]
    found: Counter[str] = Counter()
    for path in suite.paths:
        with tempfile.NamedTemporaryFile() as stacks:
            record = [str(python.parent / "py-spy"), "record", "--format", "raw", "--full-filenames", "--subprocesses"]
            record += ["--rate", str(RATE), "--output", stacks.name, "--"]
            command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *plugins]
            subprocess.run([*record, *command, *suite.options, path], cwd=source, env=variables, check=False)
            for line in Path(stacks.name).read_text().splitlines():
                stack, _, looks = line.rpartition(" ")
                found[_of(stack.split(";"), source)] += int(looks)
    return Counter({whose: looks // RATE for whose, looks in found.items()})


def _of(frames: list[str], source: Path) -> str:
    for frame in reversed(frames):
        file = _FILE.search(frame)
        if file is not None and file[1].startswith(str(ROOT / "dualray")):
            return "dualray"
        if file is not None and file[1].startswith(str(source)):
            return "the suite's project"
    return "neither"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=sorted(SUITES))
    parser.add_argument("--source", type=Path, required=True, help="a checkout of the suite's project")
    arguments = parser.parse_args()
    for whose, amount in seconds(SUITES[arguments.suite], arguments.source.resolve()).most_common():
        print(f"{whose}: {amount} s")


if __name__ == "__main__":
    main()
