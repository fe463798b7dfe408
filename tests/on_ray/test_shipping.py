"""A cluster whose workers have no dualray gets it with the job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import subprocess, sys
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
try:
    subprocess.run([sys.executable, "-W", "ignore", "driver.py", cluster.address], timeout=90, check=True)
finally:
    cluster.shutdown()
"""
DRIVER = f"""
import sys, tempfile
from pathlib import Path
before = set(Path(tempfile.gettempdir()).glob("dualray-shipped-*"))
sys.path.append({str(ROOT)!r})
import dualray
dualray.init(mode="ray", address=sys.argv[1], log_to_driver=False)

@dualray.remote
def outer(x):
    import os, dualray.on_ray
    return "py_modules_files" in dualray.on_ray.__file__, os.environ.get("A"), dualray.get(dualray.put(x))

print(dualray.get(outer.remote(3), timeout=60))
print(dualray.get(outer.options(runtime_env={{"env_vars": {{"A": "1"}}}}).remote(4), timeout=60))
print(set(Path(tempfile.gettempdir()).glob("dualray-shipped-*")) - before)
"""


def test_workers_without_dualray_get_it(tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "driver.py").write_text(DRIVER)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HEAD],
        cwd=tmp_path,
        env=environment | {"RAY_AUTH_MODE": "disabled"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert "(True, None, 3)\n(True, '1', 4)\nset()\n" in done.stdout, done.stderr[-2000:]
