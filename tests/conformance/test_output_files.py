"""What a run writes in a directory where others may write: a link that lies there does not lead it elsewhere."""

from __future__ import annotations

import dualray as ray
from dualray.recording.file import read_record_file


@ray.remote
def double(x: int) -> int:
    return 2 * x


def test_a_link_in_the_directory_of_the_decision_log_is_not_followed(start, tmp_path):
    kept, log = tmp_path / "kept", tmp_path / "log"
    kept.write_text("kept")
    log.mkdir()
    names = ("cluster", "head", "driver-1", "node-0", "node-0.w0", "node-0.w1")
    for name in names:
        (log / f"{name}.trace").symlink_to(kept)
        (log / f"{name}~1.trace").symlink_to(tmp_path / "made")
    start(num_cpus=1, decision_log=str(log))
    assert ray.get([double.remote(i) for i in range(3)]) == [0, 2, 4]
    ray.shutdown()
    assert kept.read_text() == "kept"
    assert not (tmp_path / "made").exists()
    written = [path for path in log.glob("*.trace") if not path.is_symlink()]
    assert sum(path.stat().st_size for path in written) > 0


def test_a_link_beside_a_record_is_not_followed(start, tmp_path):
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (tmp_path / ".run.parquet.part").symlink_to(kept)
    start(num_cpus=1, record=str(tmp_path / "run.parquet"))
    assert ray.get(double.remote(1)) == 2
    ray.shutdown()
    assert kept.read_text() == "kept"
    assert not (tmp_path / "run.parquet").is_symlink()
    assert any(row["kind"] == "run" for row in read_record_file(tmp_path / "run.parquet").rows)
