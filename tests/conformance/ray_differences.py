"""Conformance tests whose body cannot apply to Ray, by reason. Each reason is a row of docs/ray.md."""

from __future__ import annotations

DIFFERENCES = {
    "The words about a lost process, actor or object, and about a name that is taken, are Ray's; the class of the "
    "error is the same.": (
        "test_actor_endings.py::test_exit_actor_ends_the_actor_and_the_calls_behind",
        "test_actor_endings.py::test_max_pending_calls",
        "test_actor_endings.py::test_ray_terminate_comes_after_the_calls_before_it",
        "test_actor_failures.py::test_a_constructor_that_ends_its_worker",
        "test_actor_failures.py::test_an_actor_ends_with_the_process_that_made_it",
        "test_actor_failures.py::test_an_actor_that_dies_stays_dead_and_says_why",
        "test_actors.py::test_a_constructor_argument_that_failed_is_told_by_every_call",
        "test_async_actors.py::test_max_pending_calls_of_coroutines",
        "test_errors.py::test_a_result_that_cannot_be_pickled_names_itself",
        "test_generators.py::test_an_item_that_cannot_be_pickled",
        "test_get_put_wait.py::test_a_get_that_timed_out_says_how_many_were_missing_and_why_the_first",
        "test_labels.py::test_bundles_have_selectors",
        "test_named_actors.py::test_a_name_that_is_taken",
        "test_placement_groups.py::test_what_can_never_be_placed_is_refused_and_says_what_lacks",
        "test_named_actors.py::test_an_actor_that_is_not_detached_ends_with_its_maker",
    ),
    "A call in flight when its actor is lost may be called unavailable or dead, and be sent again in another order, as "
    "Ray finds out.": (
        "test_actor_failures.py::test_a_handle_in_another_process_follows_the_actor",
        "test_actor_failures.py::test_a_restarted_actor_has_its_resources",
        "test_actor_failures.py::test_an_actor_is_restarted_max_restarts_times",
        "test_actor_failures.py::test_calls_behind_the_one_that_crashed_run_in_their_order_in_the_next_life",
        "test_async_actors.py::test_coroutines_in_flight_are_made_again",
        "test_concurrent_actors.py::test_a_restart_with_several_calls_in_flight",
    ),
    "Calls of an actor that runs several methods at a time may start in any order.": (
        "test_async_actors.py::test_calls_start_in_order",
        "test_async_actors.py::test_locks_of_asyncio_hold",
        "test_concurrent_actors.py::test_calls_start_in_order_and_at_most_max_concurrency_run",
    ),
    "exit_actor of an actor that runs several methods at a time lets those that run come to their end.": (
        "test_async_actors.py::test_exit_actor_in_a_coroutine",
        "test_concurrent_actors.py::test_exit_actor_with_other_calls_in_flight",
    ),
    "A cancelled call ends with TaskCancelledError whatever its code does, and the error names the task's id alone; "
    "Ray interrupts code that waits in C late, or not at all.": (
        "test_async_actors.py::test_a_coroutine_is_not_cancelled_by_force",
        "test_async_actors.py::test_a_coroutine_may_return_all_the_same",
        "test_async_actors.py::test_a_coroutine_that_is_cancelled_hears_of_it",
        "test_async_actors.py::test_cancelling_a_coroutine_cancels_what_it_has_submitted",
        "test_async_actors.py::test_what_a_coroutine_raises",
        "test_concurrent_actors.py::test_cancelling_takes_what_waits_and_leaves_what_runs",
        "test_generators.py::test_cancel",
    ),
    "What needs the value of a task that crashed, or an object that was lost, raises that error, and not a TaskError "
    "with it as the cause.": (
        "test_errors.py::test_a_task_whose_argument_is_lost_has_a_task_error",
        "test_errors.py::test_what_needs_the_result_of_a_task_that_crashed_has_a_task_error",
    ),
    "Exceptions that are values, and not raised, are pickled by Ray: a constructor that does not take `args` fails.": (
        "test_errors.py::test_a_task_error_can_be_returned_as_a_value",
        "test_errors.py::test_exceptions_are_values_too",
    ),
    "Ray tells of errors that nobody reads, and of a blocked event loop, in its own words and place.": (
        "test_async_actors.py::test_who_blocks_the_loop_is_told",
        "test_errors.py::test_an_error_that_nobody_reads_is_told_once",
    ),
    "Ray counts a call among an actor's pending ones until it knows of its end: `max_pending_calls` is reached "
    "earlier.": ("test_actor_endings.py::test_calls_that_fail_count_no_more",),
    "A coroutine, or a task with an event loop, keeps its CPU while it awaits a value.": (
        "test_async_actors.py::test_a_task_that_awaits_gives_its_cpu_back",
    ),
    "Names are listed in any order, and the name of an actor whose constructor has raised is free a moment later.": (
        "test_named_actors.py::test_an_actor_whose_constructor_raises_frees_its_name",
        "test_named_actors.py::test_named_actors_are_listed",
    ),
    "A generator whose items are several results is not tried again once the first of them is there.": (
        "test_generator_results.py::test_a_generator_is_tried_again_as_often_as_it_may",
    ),
    "`completed()` of a generator that has raised is ready without an error; the item behind the last one has it.": (
        "test_generators.py::test_an_error_in_the_middle_is_the_next_item",
    ),
    "What waits for or runs in a placement group when it is removed may hang, or end as if its worker had died; a "
    "group ends with its job, and not with the actor that made it.": (
        "test_placement_groups.py::test_a_group_ends_with_the_process_that_made_it_unless_it_is_detached",
        "test_placement_groups.py::test_a_group_that_waits_can_be_removed",
        "test_placement_groups.py::test_removal_ends_what_runs_in_the_group",
    ),
    "Directories and modules of a runtime environment are copied to each node when the call is made.": (
        "test_runtime_env.py::test_a_directory_that_is_gone_when_the_task_begins",
        "test_runtime_env.py::test_working_dir",
    ),
    "Ray writes plain containers with msgpack: what is shared inside a value, or between arguments, comes back as "
    "copies, and a bytearray as bytes.": (
        "test_values.py::test_one_list_passed_twice_is_one_list",
        "test_values.py::test_values_come_back_equal",
        "test_values.py::test_what_is_shared_inside_a_value_stays_shared",
    ),
    "Ray does not know serializers that dualray.util.register_serializer has been given: give them to "
    "ray.util.register_serializer, too.": ("test_util.py::test_a_registered_serializer_is_used_everywhere",),
    "Locations of objects are refused.": (
        "test_util.py::test_a_task_asks_where_objects_are",
        "test_util.py::test_objects_have_locations",
    ),
    "Ids are Ray's: an object's has 28 bytes, and says nothing of its index; a node has an id, and no name.": (
        "test_util.py::test_a_node_knows_its_address",
        "test_generators.py::test_the_death_of_the_worker_gives_no_item_twice",
    ),
}


def reasons() -> dict[str, str]:
    """The reason of each test: by "file::function"."""
    return {test: reason for reason, tests in DIFFERENCES.items() for test in tests}
