"""The driver modes of 2017, by number."""

from dualray import runtime

SCRIPT_MODE = 0
"""The usual one: tasks run in workers, and errors that nobody reads are printed."""
WORKER_MODE = 1
"""Of workers; not for `init`."""
PYTHON_MODE = 2
"""Tasks run in the driver's process, when they are submitted."""
SILENT_MODE = 3
"""As SCRIPT_MODE, and nothing is printed that workers or errors have to say."""


def runs_in_place() -> bool:
    """Whether the program runs in PYTHON_MODE: calls, `put` and `get` then deal in values, as in 2017."""
    running = runtime.current_or_none()
    return running is not None and running.mode == "inline"


DRIVER_MODES = {"SCRIPT_MODE": SCRIPT_MODE, "PYTHON_MODE": PYTHON_MODE, "SILENT_MODE": SILENT_MODE}
