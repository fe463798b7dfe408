"""Why tests of Ray's are missing where the error does not say it, by the test's name without its parameters."""

from __future__ import annotations

from typing import Final

PRIVATE: Final = "private to Ray"
CLIENT: Final = "the Ray Client"
CLOSED: Final = "dualray closes a generator that nobody reads any more"
SETTINGS: Final = "dualray's processes have no such setting"
DASHBOARD: Final = "the dashboard is a command of its own, and has no address in init()"

NAMED: Final = {
    "multi_node_2.py::test_system_config": PRIVATE,
    "multi_node_2.py::test_detached_actor_autoscaling": "a simulation ends with shutdown(), with its detached actors",
    "object_manager.py::test_pull_bundles_pinning": "the arguments of one task must fit the store of its node together",
    "placement_group_3.py::test_placement_group_removal_leak_regression": (
        "resources of bundles have no names of their own"
    ),
    "placement_group_3.py::test_placement_group_status": PRIVATE,
    "placement_group_5.py::test_placement_group_strict_pack_soft_target_node_id": PRIVATE,
    "placement_group_5.py::test_task_using_pg_observability": PRIVATE,
    "ray_init.py::test_ray_init_credential": CLIENT,
    "ray_init.py::test_ray_init_no_local_instance": "address='auto' starts a cluster where none runs",
    "ray_init.py::test_ray_init_sigterm_handler": "init() leaves a program its own handler of SIGTERM",
    "ray_init.py::test_ray_init_using_hostname": PRIVATE,
    "ray_init.py::test_ray_init_with_runtime_env_as_dict": PRIVATE,
    "ray_init.py::test_ray_init_with_runtime_env_as_object": PRIVATE,
    "ray_init.py::test_new_cluster_new_session_dir": "a simulation has no directory",
    "ray_init.py::test_new_ray_instance_new_session_dir": "a simulation has no directory",
    "ray_init_2.py::test_driver_node_ip_address_auto_configuration": "a virtual node has a virtual address",
    "ray_init_2.py::test_get_node_to_connect_for_driver_filters_by_node_name": PRIVATE,
    "ray_init_2.py::test_hosted_external_dashboard_url": DASHBOARD,
    "ray_init_2.py::test_ports_assignment": SETTINGS,
    "ray_init_2.py::test_ray_init_from_workers": PRIVATE,
    "ray_init_2.py::test_temp_dir_with_node_ip_address": SETTINGS,
    "ray_init_2.py::test_tmpdir_env_var": "the directories of sessions stand in TMPDIR, not in RAY_TMPDIR",
    "reconstruction_2.py::test_lineage_evicted": "dualray keeps the lineage of all that is referenced",
    "reconstruction_2.py::test_memory_util": "the columns of ray memory",
    "reconstruction_2.py::test_object_reconstruction_dead_actor": "list_tasks has one row for all attempts of a task",
    "scheduling.py::test_hybrid_policy_threshold": "a node runs what has room there before the head spreads",
    "scheduling.py::test_locality_aware_leasing": "the head places a task before it hears of a free place",
    "scheduling.py::test_gpu": "a node without GPUs is no better for a task that needs none",
    "scheduling.py::test_pull_manager_at_capacity_reports": "the words of ray memory",
    "serialization.py::test_buffer_alignment": "arrays inside of small values are aligned to 8 bytes",
    "streaming_generator.py::test_streaming_object_ref_generator_basic_unit": PRIVATE,
    "streaming_generator.py::test_streaming_object_ref_generator_task_failed_unit": PRIVATE,
    "streaming_generator_2.py::test_generator_max_returns": "a generator may yield any number of items",
    "streaming_generator_2.py::test_python_object_leak": "what modules leave behind when they are first imported",
    "streaming_generator_backpressure.py::test_backpressure_invalid": "coroutines may be held back, too",
    "streaming_generator_backpressure.py::test_backpressure_pause_signal": "the state of tasks has no pid",
    "streaming_generator_backpressure.py::test_caller_failure_doesnt_hang": (
        "list_tasks forgets a task with the process that called it"
    ),
    "streaming_generator_backpressure.py::test_streaming_generator_backpressure_basic": CLOSED,
    "streaming_generator_regression.py::test_segfault_report_streaming_generator_output": (
        "list_workers has no workers that have ended"
    ),
    "traceback.py::test_dep_failure": "the error of an argument is that of the task that failed first",
    "traceback.py::test_serialization_error_message": "a message in Ray's words",
    "traceback.py::test_unpickleable_stacktrace": (
        "an error that cannot be unpickled comes as a TaskError with its traceback"
    ),
}
