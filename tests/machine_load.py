"""How much longer a step may take when the machine has other work."""

from __future__ import annotations

import os


def slowness() -> float:
    """1 on a quiet machine; else the processes that want to run, per core. A test multiplies its bounds by it."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
