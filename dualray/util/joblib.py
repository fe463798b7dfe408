"""The joblib backend "dualray", which runs `Parallel` (for example in scikit-learn) on the CPUs of the cluster.

    from dualray.util.joblib import register_dualray

    register_dualray()
    with joblib.parallel_backend("dualray"):
        grid_search.fit(X, y)

dualray runs each batch of joblib as a task, and runs the task again if its worker or node dies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import joblib
from joblib.parallel import ParallelBackendBase

from dualray import api, runtime

__all__ = ["register_dualray", "register_ray"]


def register_dualray() -> None:
    """Register the backend with joblib as "dualray", and, for programs written for Ray, as "ray".

    `joblib.parallel_backend("dualray", ...)` takes `ray_remote_args`, options of the tasks that run batches.
    """
    joblib.register_parallel_backend("dualray", RayBackend)
    joblib.register_parallel_backend("ray", RayBackend)


register_ray = register_dualray


def _run_batch(batch: Callable[[], Any]) -> Any:
    return batch()


class RayBackend(ParallelBackendBase):  # type: ignore[misc]  # joblib ships no types
    supports_retrieve_callback = True
    supports_sharedmem = False
    uses_threads = False

    def __init__(self, *args: Any, ray_remote_args: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        options = {"name": "joblib", **(ray_remote_args or {})}
        self._run = api.remote(_run_batch).options(**options)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **kwargs: Any) -> int:
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """As asked for; -1: all CPUs of the cluster, -2: all but one, and so on."""
        if n_jobs == 0:
            raise ValueError("n_jobs=0 has no meaning; use 1, or -1 for all CPUs of the cluster")
        if n_jobs is None:
            return 1
        if not api.is_initialized():
            api.init()
        cpus = int(api.cluster_resources().get("CPU", 1))
        return n_jobs if n_jobs > 0 else max(cpus + 1 + n_jobs, 1)

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], None] | None = None) -> Any:
        """Run a batch; `callback` is called with its outcome, beside the caller."""
        ref = self._run.remote(func)

        def tell() -> None:
            outcome: tuple[Any, Exception | None]
            try:
                outcome = api.get(ref), None
            except Exception as error:  # noqa: BLE001 - joblib raises it where the caller waits
                outcome = None, error
            if callback is not None:
                callback(outcome)

        runtime.current("joblib's backend").verbs.spawn(tell)
        return ref

    def retrieve_result_callback(self, out: tuple[Any, Exception | None]) -> Any:
        result, error = out
        if error is not None:
            raise error
        return result
