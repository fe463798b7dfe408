"""Why tests of Ray's are missing where the error does not say it, by the test's name without its parameters."""

from __future__ import annotations

from typing import Final

PRIVATE: Final = "private to Ray"
CLIENT: Final = "the Ray Client"
SPEED: Final = "dualray answers all calls before the actor leaves"
FREES: Final = "Ray's call that frees by force, which is private"
WALL_TIME: Final = "it compares times of subprocesses, which take wall-clock time, in virtual time"
CANNOT_JOIN: Final = "a program of its own cannot join a simulation"

NAMED: Final = {
    "basic.py::test_default_worker_import_dependency": "workers load numpy in advance",
    "test/base/test_env.py::test_async_check_id": WALL_TIME,
    "test/base/test_env.py::test_async_env": WALL_TIME,
    "actor.py::test_actor_class_name": PRIVATE,
    "actor.py::test_actor_handle_hash_eq": PRIVATE,
    "actor.py::test_actor_parent_task_correct": PRIVATE,
    "actor.py::test_get_local_actor_state": PRIVATE,
    "actor.py::test_parent_task_correct_concurrent_async_actor": "the children have ended before they are counted",
    "actor_advanced.py::test_actor_gc": PRIVATE,
    "actor_advanced.py::test_actor_timestamps": PRIVATE,
    "actor_advanced.py::test_detached_actor_cleanup": PRIVATE,
    "actor_cancel.py::test_async_actor_server_side_cancel": "Ray's table of tasks is a second late",
    "actor_failures.py::test_exit_actor_queued": SPEED,
    "actor_lineage_reconstruction.py": PRIVATE,
    "advanced.py::test_internal_free_edge_case": FREES,
    "advanced.py::test_internal_free_non_owned": FREES,
    "advanced_3.py::test_global_state_api": PRIVATE,
    "advanced_3.py::test_raylet_is_robust_to_random_messages": PRIVATE,
    "advanced_3.py::test_wait_reconstruction": PRIVATE,
    "advanced_6.py::test_whether_worker_leaked_when_task_finished_with_errors": CANNOT_JOIN,
    "advanced_6.py::test_worker_niceness": "workers have the priority of the program",
    "advanced_7.py::test_task_output_inline_bytes_limit": PRIVATE,
    "asyncio.py::test_asyncio_actor_shutdown_when_non_async_method_mixed": SPEED,
    "basic.py::test_fetch_local": "without automatic spilling, dualray still makes room for a copy",
    "basic.py::test_worker_thread_count": PRIVATE,
    "basic_2.py::test_get_correct_node_ip": PRIVATE,
    "basic_4.py::test_fork_support": PRIVATE,
    "basic_4.py::test_worker_startup_count": PRIVATE,
    "basic_5.py::test_preload_workers": PRIVATE,
    "basic_5.py::test_site_flag_inherited": PRIVATE,
    "basic_5.py::test_worker_kv_calls": PRIVATE,
    "bundle_label_selector.py::test_gpu_domain_scheduling_rescheduling_on_gpu_domain_failure": (
        "a group has no GPU domain of its own"
    ),
    "cancel.py::test_defer_sigint_noop_in_non_main_thread": PRIVATE,
    "cancel.py::test_recursive_cancel_actor_task": "list_tasks says that an interrupted task is FAILED, not FINISHED",
    "concurrency_group.py::test_invalid_concurrency_group": "a limit of 0 is refused in the driver, by a ValueError",
    "concurrency_group.py::test_system_concurrency_group": PRIVATE,
    "failure.py::test_actor_failover_with_bad_network": "a node's workers end with it",
    "failure_2.py::test_gcs_server_crash_cluster": PRIVATE,
    "failure_2.py::test_list_named_actors_timeout": PRIVATE,
    "failure_3.py::test_no_worker_child_process_leaks": "a program of its own cannot join a simulation",
    "failure_3.py::test_plasma_store_operation_after_raylet_dies": PRIVATE,
    "failure_3.py::test_worker_cleans_up_child_procs_on_raylet_death": PRIVATE,
    "failure_3.py::test_worker_exit_after_parent_raylet_dies": PRIVATE,
    "failure_4.py::test_retry_application_level_error_exception_filter": PRIVATE,
    "failure_4.py::test_object_lost_error": "references do not record the line that made them",
    "failure_4.py::test_shows_both_user_exception_system_error_same_time": (
        "list_tasks has kinds of errors of its own"
    ),
    "failure_4.py::test_task_failure_when_driver_local_raylet_dies": PRIVATE,
    "failure_4.py::test_worker_start_timeout": PRIVATE,
    "generators.py::test_dynamic_generator_gc_each_yield": PRIVATE,
    "generators.py::test_dynamic_generator_reconstruction_fails": "the generator gets the CPU before the actor does",
    "generators.py::test_dynamic_generator_reconstruction_nondeterministic": (
        "an item that its task does not make again raises ObjectReconstructionFailedError"
    ),
    "generators.py::test_generator_oom": "10 GB of random numbers take longer than a minute",
    "list_actors_3.py::test_list_named_actors_detached": CANNOT_JOIN,
    "list_actors_4.py::test_list_named_actors_namespace": CANNOT_JOIN,
    "multi_node.py::test_cleanup_on_driver_exit": PRIVATE,
    "multi_node_2.py::test_system_config": PRIVATE,
    "multi_node_2.py::test_detached_actor_autoscaling": "a simulation ends with shutdown(), with its detached actors",
    "namespace.py::test_isolation": CANNOT_JOIN,
    "namespace.py::test_namespace_in_job_config": CANNOT_JOIN,
    "namespace.py::test_namespace_client": CLIENT,
    "object_manager.py::test_pull_bundles_pinning": "the arguments of one task must fit the store of its node together",
    "placement_group_3.py::test_placement_group_status": PRIVATE,
    "placement_group_5.py::test_placement_group_strict_pack_soft_target_node_id": PRIVATE,
    "placement_group_5.py::test_task_using_pg_observability": PRIVATE,
    "ray_init.py::test_auto_init_client": CLIENT,
    "ray_init.py::test_ray_init_credential": CLIENT,
    "ray_init.py::test_ray_init_no_local_instance": "address='auto' starts a cluster where none runs",
    "ray_init.py::test_ray_init_using_hostname": "a virtual node has the host name of no machine",
    "ray_init.py::test_ray_init_with_runtime_env_as_dict": PRIVATE,
    "ray_init.py::test_ray_init_with_runtime_env_as_object": PRIVATE,
    "ray_init_2.py::test_driver_node_ip_address_auto_configuration": "a virtual node has a virtual address",
    "ray_init_2.py::test_get_node_to_connect_for_driver_filters_by_node_name": PRIVATE,
    "ray_init_2.py::test_get_node_to_connect_for_driver_no_matching_node_timeout": PRIVATE,
    "ray_init_2.py::test_hosted_external_dashboard_url": PRIVATE,
    "ray_init_2.py::test_non_default_ports_visible_on_init": PRIVATE,
    "ray_init_2.py::test_ray_init_from_workers": PRIVATE,
    "ray_init_2.py::test_temp_dir_with_node_ip_address": PRIVATE,
    "reconstruction_2.py::test_lineage_evicted": PRIVATE,
    "reconstruction_2.py::test_memory_util": PRIVATE,
    "reconstruction_2.py::test_nested": "a copy on another node outlives the node",
    "reconstruction_2.py::test_object_reconstruction_dead_actor": "a lost object is made again when somebody needs it",
    "reference_counting.py::test_actor_holding_serialized_reference": "a put before earlier frees evicts a value",
    "reference_counting_2.py::test_borrowed_id_failure": "a reference that an actor passed on outlives the actor",
    "reference_counting_2.py::test_out_of_band_actor_handle_bypass_reference_counting": PRIVATE,
    "runtime_env_env_vars.py::test_environment_variables_env_caching": "a lease keeps its worker for one function",
    "scheduling.py::test_hybrid_policy_threshold": "a node runs what has room there before the head spreads",
    "scheduling.py::test_locality_aware_leasing": "the head places a task before a node reports a free place",
    "scheduling.py::test_no_resource_oversubscription_during_shutdown": (
        "a task that waits in get() lends its CPU, and a virtual worker starts at once"
    ),
    "scheduling.py::test_pull_manager_at_capacity_reports": PRIVATE,
    "scheduling_2.py::test_critical_object_store_mem_resource_utilization": (
        "memory of a store in use does not repel tasks"
    ),
    "scheduling_2.py::test_data_locality_spilled_objects": "the head places a task before a node reports a free place",
    "streaming_generator.py::test_generator_basic": "ten retries without a pause end before the actor has changed",
    "streaming_generator.py::test_streaming_object_ref_generator_basic_unit": PRIVATE,
    "streaming_generator.py::test_streaming_object_ref_generator_task_failed_unit": PRIVATE,
    "streaming_generator_2.py::test_python_object_leak": "what modules leave behind when they are first imported",
    "streaming_generator_backpressure.py::test_backpressure_invalid": "coroutines may be held back, too",
    "streaming_generator_backpressure.py::test_backpressure_pause_signal": "the state of tasks has no pid",
    "streaming_generator_backpressure.py::test_caller_failure_doesnt_hang": (
        "list_tasks forgets a task with the process that called it"
    ),
    "streaming_generator_regression.py::test_segfault_report_streaming_generator_output": PRIVATE,
    "traceback.py::test_unpickleable_stacktrace": (
        "dualray unpickles an exception whose constructor takes other arguments"
    ),
    "unavailable_actors.py::test_actor_restart": "the news of an actor's end reaches a caller after its constructor",
    "unavailable_actors.py::test_actor_unavailable_conn_broken": "processes of one machine have no TCP connection",
}
