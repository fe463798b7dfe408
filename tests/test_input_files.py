"""Files that a user names: a FIFO, an endless device or a huge file ends in one line, and not in a hang."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dualray.input_files import read_bytes, read_text
from dualray.real.cluster.address import read_secret
from dualray.real.cluster.launch import read_growth
from dualray.recording.calibration import load_calibration
from dualray.recording.ray_import import import_ray
from dualray.settings import resolve
from dualray.shared.scenario.file import ScenarioError
from dualray.testing.run import load_scenario
from dualray.whatif.configurations import faults_of
from dualray.whatif.spot import load_spot

pytestmark = pytest.mark.timeout(20)  # far less than a FIFO without a writer would take

READERS = {
    "scenario": load_scenario,
    "init(scenario=)": lambda path: resolve({"mode": "sim", "scenario": str(path)}),
    "calibration": load_calibration,
    "secret": read_secret,
    "growth": read_growth,
    "faults": lambda path: faults_of(str(path)),
    "spot": lambda path: load_spot(str(path)),
}


@pytest.fixture(params=["fifo", "endless"])
def never_ends(tmp_path, request):
    path = tmp_path / "file"
    if request.param == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_in_one_line(reader, never_ends):
    with pytest.raises((ValueError, ScenarioError), match=r"it is not a regular file[^\n]*$"):
        READERS[reader](never_ends)


def test_a_scenario_includes_no_file_that_never_ends(tmp_path):
    os.mkfifo(tmp_path / "cluster.yaml")
    (tmp_path / "it.yaml").write_text("name: it\ncluster: {from: cluster.yaml}\nprogram: {script: it.py}\n")
    with pytest.raises(ScenarioError, match=r"there is no file 'cluster.yaml'"):
        load_scenario(tmp_path / "it.yaml")


def test_sizes_edges_and_timelines_of_an_import_are_regular_files(tmp_path, never_ends):
    (tmp_path / "export_events").mkdir()
    event = tmp_path / "export_events" / "event_EXPORT_TASK.log"
    os.mkfifo(event)
    with pytest.raises(ValueError, match="it is not a regular file"):
        import_ray(tmp_path / "export_events")


def test_a_secret_may_come_from_a_pipe_of_the_shell():
    program = "import sys; from pathlib import Path; from dualray.real.cluster.address import read_secret; "
    program += "print(read_secret(Path(sys.argv[1])))"
    shell = f"{sys.executable} -c '{program}' <(printf 0123456789abcdef)"
    found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=15, check=True)
    assert found.stdout == "b'0123456789abcdef'\n"


def test_a_file_has_a_largest_size(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"a\r\nb")
    assert read_text(path) == "a\nb"
    assert read_bytes(path, bytes_max=4) == b"a\r\nb"
    with pytest.raises(OSError, match="it has more than 3 bytes"):
        read_bytes(path, bytes_max=3)


@pytest.mark.parametrize(
    "event", ["{}", '{"task_id": 5}', '{"task_id": "!!"}', '{"task_id": "AAAA", "attempt_number": "x"}', "[]", "null"]
)
def test_events_of_ray_that_are_damaged_are_refused_in_one_line(tmp_path, event):
    (tmp_path / "export_events").mkdir()
    line = '{"source_type": "EXPORT_TASK", "event_data": ' + event + "}\n"
    (tmp_path / "export_events" / "event_EXPORT_TASK.log").write_text(2 * line)
    with pytest.raises(ValueError) as caught:
        import_ray(tmp_path / "export_events")
    assert "\n" not in str(caught.value)
