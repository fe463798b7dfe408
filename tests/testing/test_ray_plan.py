"""What a scenario may ask of a local Ray is checked before anything starts; Ray need not be installed."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dualray.cli.app import app
from dualray.shared.scenario.fault_model import parse_fault
from dualray.testing.ray_run import PERFORMED, _without_rays, check_plan

NAMES = ["node-0", "node-1", "node-2"]


@pytest.mark.parametrize(
    "words",
    [
        "kill node-1 when f starts 3",
        "reboot node-1 at 1s for 2s",
        "drain node-2 when f#4 starts for 1s",
        "kill worker when f ends 2 on node-1",
        "pause worker when f starts 1 for 1s",
        "slow node-1 by 4 at 1s for 1s",
        "kill actor Counter at 1s",
        "add 2 nodes when task_submitted 3",
    ],
)
def test_what_is_performed(words: str):
    fault = parse_fault(words)
    assert fault.kind in PERFORMED
    check_plan([fault], NAMES)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("partition node-1 at 1s for 1s", "mode ray does not perform this fault; leave out --mode ray"),
        ("fill node-1 to 0.9 at 1s", "Mode ray performs: .*kill node"),
        ("reboot node-1 with its store at 1s for 2s", "does not perform this fault"),
        (
            "kill node-1 when object_stored 3",
            "mode ray cannot observe object_stored, because dualray only sees when calls",
        ),
        ("kill node-7 at 1s", "the cluster has no node 'node-7'; the nodes are node-0, node-1, node-2"),
        ("kill node-0 at 1s", "the driver and the head process run on node-0"),
        ("slow node-1 by 0.5 at 1s", "the factor must be above 1"),
    ],
)
def test_what_is_not_performed_is_refused_with_the_way_out(words: str, says: str):
    with pytest.raises(ValueError, match=says):
        check_plan([parse_fault(words)], NAMES)


def test_what_ray_tells_of_nodes_is_no_result():
    lines = ("[2026-11-25 08:24:59,207 I] (raylet) a.cc", "[state-dump]")
    told = "\n    ".join(("\x1b[33m(raylet)\x1b[0m Raylet is terminated. Last lines:", *lines))
    assert _without_rays(f"first\n  second\n{told}\n8555\n{told}") == "first\n  second\n8555"


def test_the_command_refuses_what_ray_does_not_leave(tmp_path):
    assert CliRunner().invoke(app, ["scenario", "new", str(tmp_path / "first")]).exit_code == 0
    file = str(tmp_path / "first.yaml")
    done = CliRunner().invoke(app, ["scenario", "run", file, "--mode", "ray", "--report", str(tmp_path / "page.html")])
    assert done.exit_code == 2
    assert "Ray writes no decision logs" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["scenario", "run", file, "--mode", "dask"])
    assert done.exit_code == 2
    assert "must be sim, real or ray" in " ".join(done.output.split())
