"""`python -m dualray.as_ray script.py`, `-m module` or `-c code`: as `python` would, with the name `ray`.

Mode and settings come from the environment (DUALRAY_MODE, DUALRAY_NODES, ...); `dualray run --as-ray` has options.
"""

from __future__ import annotations

import sys

from dualray.as_ray import install
from dualray.as_ray.programs import run

USAGE = "usage: python -m dualray.as_ray SCRIPT.py|-m MODULE|-c CODE [ARGUMENTS]"

if __name__ == "__main__":
    if len(sys.argv) < 2 or (sys.argv[1] in ("-m", "-c") and len(sys.argv) < 3):
        sys.exit(USAGE)
    if sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(f"{USAGE}\n\n{__doc__}")
    else:
        install()
        run(sys.argv[1:])
