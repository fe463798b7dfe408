"""Takes from a session's processes, one after another, what the system gives: `python -m tests.exhaustion --runs 5000`.

Each run takes one resource from one process, by its limits (prlimit), so that every system call that needs it fails
from then on: open files, memory, or threads at their present number or a few more, or the size of files that it may
write (logs, spilled objects, shared memory). Or it fills the session's disk or shared memory, for all processes.

Meanwhile tasks run, actors are made and called, and objects stored and spilled. Each answer must be right, or a clear
error come in bounded time; when the resource is back, so must the session be. A run is drawn from its seed.

Root has no limit of threads, so root's runs are another user's. `--jobs` runs at a time have a user each, and a disk
and a shared memory of their own in a mount namespace, for which it takes root.
"""
