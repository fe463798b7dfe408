"""Every complete block of code of the four seed documents runs, in both modes, with only its imports changed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.input_data import digits, write_idx
from tests.seeds.programs import DOCUMENTS, Program, blocks, changes_of, document, programs, table

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "dualray" / "classic" / "scripts"
PAGE = ROOT / "tests" / "seeds" / "README.md"
MODES = ("sim", "real")

CODE = re.compile(
    r"^\s*(import \w|from \w+.* import |def \w+\(|class \w+[(:]|@ray\.|\w+(, \w+)* = (\[|ray\.|tf\.)|while .*:$"
    r"|for \w+ in .*:$)"
)
"""What a line of Python looks like that is no prose."""
INLINE = {("002", 348)}
"""Words of code in the middle of a sentence, which the document has on lines of their own."""


def in_mode(program: Program) -> list[Any]:
    # In sim mode nothing is waited for; with TensorFlow each process takes 4 s for the import alone.
    with_tensorflow = any("tensorflow" in line for name in program.blocks for line in blocks()[name].text)
    is_large = with_tensorflow or bool(program.object_store_memory)
    is_quick = {"sim": not is_large or not program.slow, "real": not is_large and not program.slow}
    marks = {mode: () if is_quick[mode] else pytest.mark.slow for mode in MODES}
    return [pytest.param(program, mode, id=f"{program.name}-{mode}", marks=marks[mode]) for mode in MODES]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where programs run: MNIST's files are there, with scikit-learn's digits in their format."""
    directory = tmp_path_factory.mktemp("seeds")
    write_mnist(directory / "MNIST_data")
    return directory


def write_mnist(directory: Path) -> None:
    """Write scikit-learn's digits as the files of MNIST."""
    directory.mkdir()
    data = digits()
    for part, rows in (("train", data.train), ("t10k", data.test)):
        images = np.kron(rows.images.reshape(-1, 8, 8), np.ones((3, 3)))
        padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))
        write_idx(directory / f"{part}-images-idx3-ubyte.gz", np.rint(padded * 255).astype(np.uint8))
        write_idx(directory / f"{part}-labels-idx1-ubyte", rows.labels.astype(np.uint8))


@pytest.fixture
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """Of a cluster of two nodes, started as the document says; sim mode needs none."""
    program, mode = request.getfixturevalue("program"), request.getfixturevalue("mode")
    if not program.joins or mode == "sim":
        yield "127.0.0.1:6379"
        return
    environment = environment_of("real", program) | {"DUALRAY_PYTHON": sys.executable}
    head = shell("start_ray.sh", "--head", "--redis-port=0", "--num-cpus=2", "--num-workers=2", env=environment)
    try:
        found = re.search(r'address="([\d.]+:\d+)"', head)
        assert found is not None, head
        secret = re.search(r"secret: (\S+)", head)
        assert secret is not None, head
        shell(
            "start_ray.sh", f"--redis-address={found[1]}", f"--secret-file={secret[1]}", "--num-cpus=2", env=environment
        )
        yield found[1]
    finally:
        shell("stop_ray.sh", env=environment)


def shell(script: str, *args: str, env: dict[str, str]) -> str:
    done = subprocess.run([str(SCRIPTS / script), *args], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment_of(mode: str, program: Program) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DUALRAY_")}
    paths = [str(ROOT), *filter(None, [environment.get("PYTHONPATH")])]
    settings = {"MODE": mode, "NUM_CPUS": str(program.num_cpus), "NUM_GPUS": str(program.num_gpus)}
    if mode == "sim":
        settings["NODES"] = "3"
    if program.object_store_memory:
        settings["OBJECT_STORE_MEMORY"] = program.object_store_memory
    return environment | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONWARNINGS": "ignore",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "DUALRAY_NVML": "off",  # the GPUs that a program declares are there on every machine
        **{f"DUALRAY_{name}": value for name, value in settings.items()},
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("program", "mode"), [param for program in programs() for param in in_mode(program)])
def test_program(program: Program, mode: str, address: str, directory: Path, tmp_path: Path):
    path = tmp_path / f"{program.name}.py"
    path.write_text(program.source(blocks(), address))
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        cwd=directory,
        env=environment_of(mode, program) | {"HOME": str(tmp_path)},  # where runs of training are kept
        timeout=280,
    )
    assert done.returncode == 0, f"{path.read_text()}\n{done.stdout}\n{done.stderr}"
    assert "the program has come to its end\n" in done.stdout  # workers may print after it


def test_every_complete_block_is_in_a_program():
    run = {name for program in programs() for name in program.blocks}
    known = blocks()
    assert run <= set(known)
    left = [block.name for block in known.values() if bool(block.fragment or block.waiting) == (block.name in run)]
    assert left == []


@pytest.mark.parametrize("doc", DOCUMENTS)
def test_every_line_of_code_is_in_a_block(doc: str):
    ranges = [block.lines for block in blocks().values() if block.doc == doc]
    missed = [
        (number, line)
        for number, line in enumerate(document(doc), 1)
        if CODE.match(line) and (doc, number) not in INLINE and not any(a <= number <= b for a, b in ranges)
    ]
    assert missed == []


def test_nothing_is_changed_but_the_listed_lines():
    known = blocks()
    for program in programs():
        source = program.source(known)
        for name in program.blocks:
            for line in known[name].text:
                new = changes_of(known[name].doc).get(line.strip(), line.strip())
                assert new.replace("<redis-address>", "") in source


def test_the_page_lists_every_block():
    assert PAGE.read_text().endswith(table()), (
        "write what tests.seeds.programs.table() returns into tests/seeds/README.md"
    )
