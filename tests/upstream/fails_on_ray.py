"""Ray's own tests that fail on Ray 2.60 itself, with the reason. dualray is not held to them."""

from __future__ import annotations

from typing import Final

_FREE: Final = "Ray 2.60 has no internal_api.free"
_OWNER: Final = "Ray 2.60 has removed put(_owner=)"
_NO_TIMEOUT: Final = "get() raises no GetTimeoutError"
_CONSTRUCTOR: Final = "an actor's constructor raises"

FAILS_ON_RAY: Final = {
    "advanced.py::test_internal_free": _FREE,
    "advanced.py::test_internal_free_edge_case": _FREE,
    "advanced.py::test_internal_free_non_owned": _FREE,
    "basic.py::test_default_worker_import_dependency": "the test's own check of modules raises an AttributeError",
    "bundle_label_selector.py::test_gpu_domain_scheduling_rescheduling_on_gpu_domain_failure": _NO_TIMEOUT,
    "failure_2.py::test_eviction": _FREE,
    "failure_2.py::test_raylet_crash_when_get": _FREE,
    "generators.py::test_generator_oom": "the generator raises a SystemError",
    "object_assign_owner.py::test_multiple_objects": _OWNER,
    "object_assign_owner.py::test_owner_assign_bug": _OWNER,
    "object_assign_owner.py::test_owner_assign_inner_object": _OWNER,
    "object_assign_owner.py::test_owner_assign_when_put": _OWNER,
    "streaming_generator_2.py::test_python_object_leak": _CONSTRUCTOR,
    "streaming_generator_backpressure.py::test_backpressure_invalid": "no ValueError is raised",
    "unavailable_actors.py::test_actor_restart": "the actor does not end in time",
    "unavailable_actors.py::test_actor_unavailable_conn_broken": _CONSTRUCTOR,
}
"""By the test's name without its parameters."""
