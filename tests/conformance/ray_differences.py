"""Conformance tests whose body cannot apply to Ray, by reason. Each reason is a row of docs/ray.md."""

from __future__ import annotations

DIFFERENCES = {
    "In Ray mode, errors about lost processes, lost actors and lost objects have Ray's messages. In Ray mode, "
    "the errors for a duplicate actor name, an unpicklable value and a failed runtime environment have Ray's "
    "messages. In Ray mode, an error has the same class as in dualray's real mode.": (
        "test_runtime_env.py::test_environments_that_no_worker_can_set_up",
        "test_placement_groups.py::test_what_can_never_be_placed_is_refused_and_says_what_lacks",
        "test_util.py::test_the_error_has_the_path_to_what_cannot_be_pickled",
    ),
    "If an actor dies during a call on Ray, the call may raise ActorUnavailableError or ActorDiedError. When Ray "
    "restarts an actor, Ray may repeat the actor's lost calls in another order than dualray does in real mode.": (
        "test_actor_failures.py::test_a_handle_in_another_process_follows_the_actor",
        "test_actor_failures.py::test_a_restarted_actor_has_its_resources",
        "test_actor_failures.py::test_an_actor_is_restarted_max_restarts_times",
        "test_actor_failures.py::test_calls_behind_the_one_that_crashed_run_in_their_order_in_the_next_life",
        "test_async_actors.py::test_coroutines_in_flight_are_made_again",
        "test_concurrent_actors.py::test_a_restart_with_several_calls_in_flight",
        "test_actor_failures.py::test_calls_after_kill_fail_however_fast_they_are",
        "test_concurrent_actors.py::test_calls_in_flight_are_made_again",
    ),
    "If an actor runs several methods at a time, Ray may start the actor's calls in any order.": (
        "test_async_actors.py::test_calls_start_in_order",
        "test_async_actors.py::test_locks_of_asyncio_hold",
        "test_concurrent_actors.py::test_calls_start_in_order_and_at_most_max_concurrency_run",
    ),
    "On Ray, when a method of an actor calls `exit_actor`, the actor's other running methods still finish.": (
        "test_async_actors.py::test_exit_actor_in_a_coroutine",
        "test_concurrent_actors.py::test_exit_actor_with_other_calls_in_flight",
    ),
    "On Ray, `get` of a cancelled call raises TaskCancelledError even if the call's code catches the "
    "cancellation. On Ray, the message of a TaskCancelledError contains only the id of the task. If a cancelled "
    "task is in a C function that waits, Ray interrupts the task late, or not at all.": (
        "test_async_actors.py::test_a_coroutine_is_not_cancelled_by_force",
        "test_async_actors.py::test_a_coroutine_may_return_all_the_same",
        "test_async_actors.py::test_a_coroutine_that_is_cancelled_hears_of_it",
        "test_async_actors.py::test_cancelling_a_coroutine_cancels_what_it_has_submitted",
        "test_async_actors.py::test_what_a_coroutine_raises",
        "test_cancel.py::test_the_error_shows_where_the_task_was",
        "test_concurrent_actors.py::test_cancelling_takes_what_waits_and_leaves_what_runs",
        "test_generators.py::test_cancel",
        "test_nothing_hangs.py::test_a_nested_get_ends_when_what_it_waits_for_is_cancelled",
        "test_nothing_hangs.py::test_a_wait_for_several_counts_those_that_die_are_cancelled_or_killed",
        "test_rays_spellings.py::test_a_wait_is_never_shorter_than_asked",
    ),
    "If an argument of a task is lost in Ray mode, `get` of the task raises the argument's ObjectLostError, and no "
    "TaskError. In Ray mode, if the task that computes an argument crashes, `get` of the task that takes the "
    "argument raises WorkerCrashedError, and no TaskError.": (
        "test_errors.py::test_a_task_whose_argument_is_lost_has_a_task_error",
        "test_errors.py::test_what_needs_the_result_of_a_task_that_crashed_has_a_task_error",
    ),
    "On Ray, a task cannot return an exception whose constructor rejects the exception's `args`, because Ray "
    "cannot pickle such an exception.": (
        "test_errors.py::test_a_task_error_can_be_returned_as_a_value",
        "test_errors.py::test_exceptions_are_values_too",
    ),
    "In Ray mode, Ray instead of dualray prints the warnings about errors that no `get` reads, and about an actor "
    "that blocks its event loop.": (
        "test_async_actors.py::test_who_blocks_the_loop_is_told",
        "test_async_constructors.py::test_a_constructor_that_gets_a_value_blocks_nobody",
        "test_errors.py::test_an_error_that_nobody_reads_is_told_once",
    ),
    "If a task on Ray raises an exception that cannot be pickled or unpickled, `get` raises a TaskError with the "
    "exception's text.": (
        "test_errors.py::test_an_exception_that_cannot_be_unpickled_is_told_in_words",
        "test_errors.py::test_what_a_method_of_pickling_raises_reaches_the_caller_under_its_own_type",
    ),
    "On Ray, an actor handle that the program pickles with cloudpickle does not keep its actor alive.": (
        "test_references.py::test_an_actor_whose_handle_cloudpickle_pickles_is_kept_and_by_pickle_it_is_not",
    ),
    "On Ray, a task that is submitted to a removed placement group may wait forever.": (
        "test_placement_groups.py::test_a_worker_of_a_removed_group_gets_nothing_more",
    ),
    "Ray cannot create an actor if the program passes its constructor a keyword argument with the name `self`.": (
        "test_call_arguments.py::test_an_argument_may_have_the_name_self",
    ),
    "A program may reach an actor's limit `max_pending_calls` earlier on Ray than in real mode, because Ray may still "
    "count calls that have just ended.": (
        "test_actor_endings.py::test_calls_that_fail_count_no_more",
        "test_actor_endings.py::test_max_pending_calls",
    ),
    "On Ray, a coroutine keeps the CPU of its actor or task reserved while the coroutine awaits a value.": (
        "test_async_actors.py::test_a_task_that_awaits_gives_its_cpu_back",
    ),
    "If the constructor of a named actor raises an error on Ray, no new actor can have the actor's name for some "
    "time.": ("test_named_actors.py::test_an_actor_whose_constructor_raises_frees_its_name",),
    "If a generator task with `num_returns` of 2 or more has yielded a value, Ray does not retry the task.": (
        "test_generator_results.py::test_a_generator_is_tried_again_as_often_as_it_may",
    ),
    "In Ray mode, `get(g.completed())` raises no error, even if the generator `g` has raised an error. If a "
    "generator raises an error, the last reference that the generator yields refers to this error, so that "
    "`get` of this reference raises it.": ("test_generators.py::test_an_error_in_the_middle_is_the_next_item",),
    "On Ray, calls of tasks and actors in a removed placement group may hang, or fail with an error about a dead "
    "worker. On Ray, a placement group ends with its job, not with the actor that created the placement group.": (
        "test_placement_groups.py::test_a_group_ends_with_the_process_that_made_it_unless_it_is_detached",
        "test_placement_groups.py::test_a_group_that_waits_can_be_removed",
        "test_placement_groups.py::test_removal_ends_what_runs_in_the_group",
    ),
    "Ray copies the files of a `runtime_env` to the nodes when the program calls `.remote()`. In real mode, dualray "
    "does not copy the files of a `runtime_env`, so each node must already contain them.": (
        "test_runtime_env.py::test_a_directory_that_is_gone_when_the_task_begins",
        "test_runtime_env.py::test_working_dir",
    ),
    "Ray accepts the key `worker_process_setup_hook` of a `runtime_env` only in `init`. On Ray, a task whose own "
    "`runtime_env` has the key `worker_process_setup_hook` raises RuntimeEnvSetupError.": (
        "test_runtime_env.py::test_a_setup_hook_is_of_children_and_actors_too",
        "test_runtime_env.py::test_a_setup_hook_may_be_a_name",
        "test_runtime_env.py::test_a_setup_hook_runs_once_in_each_worker",
        "test_runtime_env.py::test_setup_hooks_that_fail",
    ),
    "Ray serializes lists, dicts and tuples with msgpack. If the same Python object occurs several times in a "
    "task's arguments or in a value, a task on Ray gets a separate copy for each occurrence. On Ray, a task "
    "gets a bytearray argument as bytes.": (
        "test_values.py::test_one_list_passed_twice_is_one_list",
        "test_values.py::test_values_come_back_equal",
        "test_values.py::test_what_is_shared_inside_a_value_stays_shared",
    ),
    "Ray ignores serializers that a program registers with `dualray.util.register_serializer`. In Ray mode, "
    "register each serializer both with dualray and with `ray.util.register_serializer`.": (
        "test_util.py::test_a_registered_serializer_is_used_everywhere",
    ),
    "Ray does not always call the functions that an actor registered with `atexit`.": (
        "test_actor_endings.py::test_an_actor_cleans_up_when_it_ends_and_is_not_killed",
        "test_actor_endings.py::test_an_actor_that_ends_and_is_not_killed_is_deleted",
        "test_actor_endings.py::test_an_actor_that_ends_in_its_constructor_is_not_restarted",
        "test_actor_endings.py::test_sys_exit_of_a_method_ends_the_actor_and_another_code_is_a_death",
    ),
    "In Ray mode, `get_object_locations` raises an error.": (
        "test_util.py::test_a_task_asks_where_objects_are",
        "test_util.py::test_objects_have_locations",
        "test_spill.py::test_an_object_on_disk_says_so",
    ),
    "In Ray mode, tasks, actors and objects have Ray's ids. In Ray mode, the id of an object has 28 bytes "
    "instead of 20. In Ray mode, a node has an id but no name.": (
        "test_util.py::test_a_node_knows_its_address",
        "test_generators.py::test_the_death_of_the_worker_gives_no_item_twice",
        "test_references.py::test_a_reference_has_an_id_and_compares_by_it",
        "test_resources.py::test_a_tasks_context",
        "test_resources.py::test_the_drivers_context",
    ),
    "In Ray mode, if a task raises a KeyboardInterrupt or a GeneratorExit, the message of the task's error "
    "comes from Ray, not from dualray.": (
        "test_process_oddities.py::test_a_keyboard_interrupt_that_a_task_raises_cancels_it_and_is_not_tried_again",
        "test_process_oddities.py::test_a_keyboard_interrupt_that_a_method_raises_leaves_its_actor_alive",
        "test_process_oddities.py::test_a_generator_exit_that_a_task_raises_is_its_error",
    ),
    "Ray cannot send text that is not valid Unicode, for example an error message or a task name that contains a lone "
    "surrogate.": ("test_errors.py::test_texts_with_lone_surrogates",),
    "On Ray, a worker process dies if a task raises an exception with an attribute that itself raises an error when "
    "code reads it. In real mode, dualray shortens the text of a very long error; in Ray mode, it does not.": (
        "test_errors.py::test_an_exception_whose_own_code_raises_is_its_tasks_error",
        "test_errors.py::test_an_error_that_is_longer_than_a_message_leaves_its_actor_alive",
    ),
    "To free space in the object store, dualray may delete an object that a program still references, and "
    "recompute the object later. Ray does not delete referenced objects, but writes objects to disk if the "
    "object store is full. Unlike dualray, Ray writes an object to disk even if the object is larger than the "
    "whole object store.": (
        "test_memory.py::test_a_variable_that_keeps_the_store_full_is_named_with_its_line",
        "test_spill.py::test_an_object_larger_than_memory_is_refused",
        "test_spill.py::test_when_memory_and_disk_are_full_nothing_is_lost_and_the_error_names_both",
        "test_store.py::test_a_result_for_which_there_is_no_room_is_an_error_of_its_task",
        "test_store.py::test_a_result_is_made_again_as_often_as_it_is_evicted_and_that_uses_no_retry",
        "test_store.py::test_an_argument_whose_reference_is_gone_is_made_again_for_its_descendant",
        "test_store.py::test_an_object_larger_than_the_store_is_refused_at_once",
        "test_store.py::test_arguments_that_were_stored_go_when_another_finds_no_room",
        "test_store.py::test_more_results_than_the_store_holds_are_made_again_when_they_are_read",
        "test_store.py::test_objects_that_were_put_are_not_evicted_and_a_full_store_says_who_holds_it",
        "test_store.py::test_the_result_used_longest_ago_leaves_first",
        "test_store.py::test_what_a_lost_result_was_made_from_is_made_again_too",
    ),
    "If `get` times out on Ray, the GetTimeoutError says which values are missing, but not why they are missing. "
    "In Ray mode, `explain` raises an error.": (
        "test_nothing_hangs.py::test_a_group_that_can_wait_for_ever_waits_no_longer_than_it_is_told",
        "test_nothing_hangs.py::test_a_late_get_follows_the_chain_of_arguments",
        "test_nothing_hangs.py::test_a_late_get_in_a_task_says_why_too",
        "test_nothing_hangs.py::test_a_late_get_names_what_its_actor_does_instead",
        "test_nothing_hangs.py::test_a_late_get_names_who_holds_the_cpus",
        "test_nothing_hangs.py::test_a_late_get_of_a_borrowed_reference_asks_its_owner",
        "test_nothing_hangs.py::test_a_late_get_of_a_call_of_an_actor_that_finds_no_place",
        "test_nothing_hangs.py::test_a_late_get_of_a_call_of_an_actor_whose_constructor_waits",
        "test_nothing_hangs.py::test_a_late_get_of_an_actor_that_waits_for_itself",
        "test_nothing_hangs.py::test_a_late_get_of_what_a_blocked_task_makes",
        "test_nothing_hangs.py::test_a_program_can_ask_why_a_value_is_not_there",
        "test_nothing_hangs.py::test_another_process_can_ask_why_a_task_waits",
    ),
    "In Ray mode, the functions of `dualray.util.state` need Ray's dashboard (`ray[default]`), except the "
    "functions for nodes and placement groups. In Ray mode, the rows of `dualray.util.state` have Ray's ids, "
    "states and fields.": (
        "test_state.py::test_a_task_can_ask_too",
        "test_state.py::test_a_task_that_has_ended_is_still_known",
        "test_state.py::test_actors_are_listed_while_they_live_and_after",
        "test_state.py::test_an_actors_context_in_full",
        "test_state.py::test_calls_of_actors_are_tasks",
        "test_state.py::test_objects_are_listed_with_what_keeps_them",
        "test_state.py::test_rows_answer_to_rays_names",
        "test_state.py::test_tasks_are_listed_in_every_state",
        "test_state.py::test_tasks_are_summarized_by_name",
        "test_state.py::test_the_drivers_context_in_full",
        "test_state.py::test_the_job_and_its_environment",
        "test_state.py::test_workers_are_listed",
    ),
    "In Ray mode, `timeline` raises an error.": (
        "test_timeline.py::test_a_run_without_a_decision_log_has_its_tasks",
        "test_timeline.py::test_a_task_has_no_timeline",
        "test_timeline.py::test_the_timeline_of_the_program",
    ),
    "On Ray, dualray shows only the driver's progress bars, not the progress bars of tasks and actors.": (
        "test_progress.py::test_a_bar_can_be_an_actor",
        "test_progress.py::test_bars_of_tasks_and_actors_reach_the_driver",
        "test_progress.py::test_on_a_terminal_bars_stand_below_what_is_printed",
        "test_progress.py::test_without_a_terminal_a_bar_writes_few_lines",
    ),
    "In Ray mode, dualray pickles a remote function or class again for a call with other options than the earlier "
    "calls. In Ray mode, a function's first call with other options than its earlier calls uses the current values "
    "of the variables that the function captures.": (
        "test_tasks.py::test_a_function_is_pickled_at_its_first_call_whatever_its_options_are",
        "test_tasks.py::test_an_actor_class_is_pickled_for_its_first_actor_whatever_its_options_are",
    ),
    "On Ray, the amount of each custom resource of a node must be a whole number. On Ray, the result of "
    "`cluster_resources()` includes the bytes of each node's object store.": (
        "test_resources.py::test_cluster_resources_are_those_of_all_nodes",
        "test_resources.py::test_nodes_says_what_each_node_has",
    ),
}


def reasons() -> dict[str, str]:
    """The reason of each test: by "file::function"."""
    return {test: reason for reason, tests in DIFFERENCES.items() for test in tests}
