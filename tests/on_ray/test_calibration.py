"""`dualray calibrate --engine ray`: of a cluster that is there, and predictions with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from dualray import whatif
from dualray.cli.app import app
from dualray.recording.calibration import load_calibration

pytest.importorskip("pyarrow")
pytest.importorskip("scipy")


@pytest.mark.timeout(300)
def test_a_cluster_is_measured_and_its_programs_are_predicted(ray_head: str, tmp_path: Path):
    import dualray

    output = tmp_path / "calibration.yaml"
    arguments = ["--engine", "ray", "--address", ray_head, "--seconds", "1", "-o", str(output)]
    done = CliRunner().invoke(app, ["calibrate", *arguments])
    assert done.exit_code == 0, done.output
    found = load_calibration(output)
    assert found.engine == "ray"
    assert ray_head in found.machine
    assert found.costs["submit_ns"] > 5_000
    assert found.error is not None

    dualray.init(mode="ray", address=ray_head, record=tmp_path / "run.parquet", log_to_driver=False)

    @dualray.remote
    def work(index: int) -> int:
        return index

    try:
        assert dualray.get([work.remote(index) for index in range(20)]) == list(range(20))
    finally:
        dualray.shutdown()
    predicted = whatif.predict(tmp_path / "run.parquet", nodes=[1, 2], calibration=output, seeds=3, jobs=1)
    for row in predicted.rows:
        assert not row.lacks
        assert row.low_s < row.makespan_s < row.high_s
