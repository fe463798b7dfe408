"""A copy of the package with one piece of its source changed, for processes that are to run with a bug in it.

The copy stands first on PYTHONPATH of whatever is run in it (`run_in`), so that every process of a simulation, or of a
real cluster, imports the changed module, however it was started, and compiled modules are left behind. The text to be
replaced must be in the file exactly once: who changes the code there is told to change the bug with it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A replacement in one file of the package; `path` is relative to the repository."""

    path: str
    old: str
    new: str

    def applied(self) -> str:
        """The changed source.

        Raises:
            ValueError: the text is not in the file, or more than once.
        """
        source = (ROOT / self.path).read_text()
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.path} has {count} times, not once, the text of a planted bug: {self.old!r}")
        return source.replace(self.old, self.new)


@contextlib.contextmanager
def tree_with(changed: Mapping[str, str]) -> Iterator[Path]:
    """A directory with the package in it, in which these files have another text; it goes in the end."""
    with tempfile.TemporaryDirectory(prefix="dualray-planted-") as directory:
        tree = Path(directory)
        shutil.copytree(ROOT / "dualray", tree / "dualray", ignore=shutil.ignore_patterns("*.so", "*.pyd"))
        for path, text in changed.items():
            (tree / path).write_text(text)
            for stale in (tree / path).parent.glob(f"__pycache__/{Path(path).stem}.*.pyc"):
                stale.unlink()
        yield tree


def run_in(tree: Path, words: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` with the package of this tree; scenarios may name programs of the repository.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it was killed.
    """
    path = os.pathsep.join((str(tree), str(ROOT)))
    return subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": path, "COLUMNS": "200", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
