"""What is there for machines and containers: Dockerfiles, their build script, and the scripts for parallel-ssh."""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
IMAGES = ("base", "deploy", "examples")
SCRIPTS = sorted([ROOT / "docker" / "build.sh", *(ROOT / "cluster").glob("*.sh")])
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TIMEOUT_S = 60
# As it was installed beside this interpreter, whose directory need not be on PATH.
SHELLCHECK = Path(sys.executable).parent / "shellcheck"


def instructions(image: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions with their arguments, lines that go on joined."""
    text = "\n".join(
        line
        for line in (ROOT / "docker" / image / "Dockerfile").read_text().splitlines()
        if not line.lstrip().startswith("#")
    )
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name, arguments.strip()) for name, _, arguments in (line.partition(" ") for line in lines)]


def of(image: str, name: str) -> list[str]:
    return [arguments for found, arguments in instructions(image) if found == name]


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


# ---- Images --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("image", IMAGES)
def test_a_dockerfile_has_only_instructions_that_there_are_and_begins_with_its_base(image):
    names = [name for name, _ in instructions(image)]
    assert set(names) <= {"ARG", "FROM", "RUN", "ENV", "COPY", "USER", "WORKDIR", "EXPOSE", "CMD"}
    assert names[:2] == ["ARG", "FROM"]
    assert names.count("FROM") == 1
    [argument], [base] = of(image, "ARG"), of(image, "FROM")
    assert f"${{{argument.partition('=')[0]}}}" in base


@pytest.mark.parametrize("image", IMAGES)
def test_what_a_dockerfile_copies_is_there_and_in_the_context(image):
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    for arguments in of(image, "COPY"):
        *sources, target = [part for part in shlex.split(arguments) if not part.startswith("--")]
        assert target.startswith("/")
        assert len(sources) == 1 or target.endswith("/")
        for source in sources:
            assert (ROOT / source).exists()
            assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), f".dockerignore leaves {source} out"


@pytest.mark.parametrize("image", IMAGES)
def test_what_a_dockerfile_runs_is_good_shell(image, tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/sh\n" + "\n".join(of(image, "RUN")) + "\n")
    checked = run(SHELLCHECK, script)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("image", ["deploy", "examples"])
def test_an_image_installs_the_package_with_extras_that_it_has(image):
    installed = re.findall(r"pip install '/opt/dualray\[([a-z,]+)\]'", "\n".join(of(image, "RUN")))
    assert len(installed) == 1
    assert set(installed[0].split(",")) <= PROJECT["optional-dependencies"].keys()
    copied = {part for arguments in of("deploy", "COPY") for part in shlex.split(arguments)}
    for name in ("readme",):
        assert PROJECT[name] in copied
    assert set(PROJECT["license-files"]) <= copied


def test_the_base_image_has_the_dependencies_of_the_package():
    script = ROOT / "docker" / "base" / "requirements.py"
    printed = run(sys.executable, script, ROOT / "pyproject.toml", "arrow")
    names = [Requirement(line).name for line in printed.stdout.splitlines()]
    wanted = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["arrow"]]
    assert names == [Requirement(line).name for line in wanted]
    wrong = run(sys.executable, script, ROOT / "pyproject.toml", "arow")
    assert (wrong.returncode, "has no extra 'arow': it has arrow, " in wrong.stderr) == (1, True)


def test_images_run_as_a_user_and_not_as_root():
    for image in ("deploy", "examples"):
        assert of(image, "USER")[-1] == "dualray"
    assert "useradd" in " ".join(of("base", "RUN"))


# ---- Scripts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing_and_the_script_can_be_run(script):
    checked = run(SHELLCHECK, "--enable=quote-safe-variables,require-double-brackets", script)
    assert checked.returncode == 0, checked.stdout
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()


@pytest.fixture
def docker(tmp_path) -> Path:
    """A program that says what it was called with, one argument a line, and whether it knows the secret."""
    program = tmp_path / "docker"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\necho "secret: ${DUALRAY_SECRET:-none}"\n')
    program.chmod(0o755)
    return program


def test_the_build_script_builds_each_image_upon_the_one_before(docker):
    built = run(ROOT / "docker" / "build.sh", "--tag", "7", "--no-cache", DOCKER=str(docker))
    assert built.returncode == 0, built.stderr
    calls = [call.split("\n")[:-2] for call in built.stdout.split("build\n")[1:]]
    assert [call[-2] for call in calls] == [f"dualray/{name}:7" for name in ("base-deps", "deploy", "examples")]
    for call, image in zip(calls, IMAGES, strict=True):
        assert call[0] == "--no-cache"
        assert call[call.index("--file") + 1] == f"docker/{image}/Dockerfile"
        name, _, _ = call[call.index("--build-arg") + 1].partition("=")
        assert of(image, "ARG")[0].startswith(name)
        assert call[-1] == "."
    assert "DEPLOY=dualray/deploy:7" in calls[2]


@pytest.mark.parametrize("arguments", [["--tag"], ["base"], ["--pull"]], ids=str)
def test_the_build_script_refuses_what_it_does_not_know(docker, arguments):
    refused = run(ROOT / "docker" / "build.sh", *arguments, DOCKER=str(docker))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert arguments[0] in refused.stderr


def test_a_container_gets_shared_memory_an_init_process_and_the_secret_on_no_command_line(docker, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of-this-cluster-and-no-other\n")
    script = ROOT / "cluster" / "start_container.sh"
    environment = {"DOCKER": str(docker), "DUALRAY_SECRET_FILE": str(secret), "SHM_SIZE": "8g", "GPUS": "all"}
    ran = run(script, "10.0.0.1:6399", "10.0.0.2", "--num-cpus", "3", **environment)
    assert ran.returncode == 0, ran.stderr
    *arguments, last = ran.stdout.splitlines()
    assert last == "secret: of-this-cluster-and-no-other"
    assert "of-this-cluster-and-no-other" not in arguments
    text = " ".join(arguments)
    assert "--init --network host --shm-size 8g --name dualray --gpus all --env DUALRAY_SECRET dualray/deploy" in text
    assert text.endswith("start --address 10.0.0.1:6399 --object-manager-port 8076 --node-ip 10.0.0.2 --num-cpus 3")
    head = run(script, "head", "10.0.0.1", **environment)
    assert "start --head --port 6399 --node-ip 10.0.0.1" in " ".join(head.stdout.splitlines())
    missing = run(script, "head", "10.0.0.1", **environment | {"DUALRAY_SECRET_FILE": str(tmp_path / "none")})
    assert (missing.returncode, missing.stdout) == (2, "")


def test_the_scripts_start_a_cluster_of_two_nodes_and_end_it(tmp_path, monkeypatch):
    """As parallel-ssh runs them: the worker's script comes on standard input."""
    program = tmp_path / "bin" / "dualray"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dualray "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("DUALRAY_BIN", str(program.parent))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    bash = shutil.which("bash")
    assert bash is not None
    cluster = ROOT / "cluster"
    try:
        head = run(cluster / "start_head.sh", "127.0.0.1", "--port", "0", "--num-cpus", "1")
        assert head.returncode == 0, head.stderr
        assert (tmp_path / ".dualray" / "secret").stat().st_mode & 0o777 == 0o600
        found = re.search(r"node-0 of the cluster at (\S+) runs on this machine", head.stdout)
        assert found is not None
        script = (cluster / "start_worker.sh").read_text().replace("head=${HEAD:-}", f"head={found[1]}")
        joined = subprocess.run(
            [bash],
            input=script,
            env={**os.environ, "SSH_CONNECTION": "127.0.0.1 50000 127.0.0.1 22"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert joined.returncode == 0, joined.stderr
        assert "node-1 of the cluster" in joined.stdout
        status = run("dualray", "status")
        assert "node-0" in status.stdout
        assert "node-1" in status.stdout
    finally:
        stopped = run(cluster / "stop.sh")
    assert stopped.returncode == 0, stopped.stderr
    assert "node-1" in stopped.stdout


def test_a_worker_without_a_cluster_and_an_upgrade_without_a_version_are_refused():
    for script, words in (("start_worker.sh", "set HEAD=HOST:PORT"), ("upgrade.sh", "set SOURCE=WHEEL")):
        refused = run(ROOT / "cluster" / script, HEAD="", SOURCE="")
        assert refused.returncode == 2
        assert words in refused.stderr


def test_the_image_of_the_wheel_is_made_of_what_a_release_holds():
    """`docker build .` itself needs a daemon; this is what can be known without one."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip() and not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= {"ARG", "FROM", "RUN", "ENV", "COPY", "USER", "WORKDIR", "CMD"}
    assert [line for line in lines if line.startswith("COPY")] == ["COPY dist /tmp/dist"]
    kept = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"!dist/*.whl", "!dist/*.tar.gz"} <= set(kept)
    assert lines.index("USER dualray") < lines.index('CMD ["python", "examples/demo.py"]')
    assert (ROOT / "examples" / "demo.py").is_file()
