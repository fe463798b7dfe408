"""What tasks and actors print: shown by the driver, or not."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
    import contextlib, io, sys
    import dualray as ray

    ray.init({options})

    @ray.remote
    def say():
        print("of a task")
        print("error of a task", file=sys.stderr)
        sys.stdout.buffer.write(b"bytes of a task\\n")
        kept = io.StringIO()
        with contextlib.redirect_stdout(kept):
            print("redirected")
            ray.get(nothing.remote())
            print("and still")
        return kept.getvalue()

    @ray.remote
    def nothing():
        print("nothing")

    class Actor:
        def say(self):
            print("of an actor")

    print("of the driver")
    print(repr(ray.get(say.remote())))
    ray.get(ray.remote(Actor).remote().say.remote())
    ray.shutdown()
    print("after", file=sys.stderr)
"""


def run(options: str, **variables: str) -> tuple[list[str], list[str]]:
    program = textwrap.dedent(PROGRAM).format(options=options)
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines(), done.stderr.splitlines()


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_what_workers_print_is_not_shown(mode: str) -> None:
    for options, variables in (("log_to_driver=False", {}), ("", {"DUALRAY_LOG_TO_DRIVER": "0"})):
        out, err = run(options, DUALRAY_MODE=mode, **variables)
        assert out == ["of the driver", r"'redirected\nand still\n'"]
        assert err == ["after"]


@pytest.mark.parametrize("mode", ["real", "sim"])
def test_what_workers_print_is_shown(mode: str) -> None:
    out, err = run("", DUALRAY_MODE=mode)
    words = "\n".join([*out, *err])
    for line in ("of a task", "error of a task", "bytes of a task", "nothing", "of an actor", "of the driver", "after"):
        assert line in words


@pytest.mark.parametrize("mode", ["real", "sim"])
@pytest.mark.parametrize(("value", "is_shown"), [("0", False), ("false", False), ("1", True), ("True", True)])
def test_rays_variable_says_it(mode: str, value: str, is_shown: bool) -> None:
    program = """
        import dualray.as_ray
        dualray.as_ray.install()
        import ray

        ray.init()

        @ray.remote
        def say():
            print("of a task")

        ray.get(say.remote())
        ray.shutdown()
    """
    variables = os.environ | {"RAY_LOG_TO_DRIVER": value, "DUALRAY_MODE": mode}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert ("of a task" in done.stdout) == is_shown
