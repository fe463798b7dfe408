"""The driver modes of 2017, by number."""

SCRIPT_MODE = 0
"""The usual one: tasks run in workers, and errors that nobody reads are printed."""
WORKER_MODE = 1
"""Of workers; not for `init`."""
PYTHON_MODE = 2
"""Tasks run in the driver's process, when they are submitted."""
SILENT_MODE = 3
"""As SCRIPT_MODE, and nothing is printed that workers or errors have to say."""

DRIVER_MODES = {"SCRIPT_MODE": SCRIPT_MODE, "PYTHON_MODE": PYTHON_MODE, "SILENT_MODE": SILENT_MODE}
