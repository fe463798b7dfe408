"""The conformance tests through `import ray`: `python -m tests.through_ray [--all] [arguments of pytest]`.

The tests are copied to build/through_ray, and each import of dualray there that Ray's names cover becomes one of ray:
`import dualray as ray` becomes `import ray`. pytest then runs the copy with DUALRAY_AS_RAY=1. CHOSEN names the modules
that run without `--all`: a third, chosen because they are fast and ask for most of the names.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from dualray.as_ray import VARIABLE, install

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "through_ray"
CHOSEN = (
    *("actor_classes", "async_actors", "async_constructors", "call_arguments", "cancel", "drivers_loops"),
    *("earlier_references", "garbage", "generator_results", "get_put_wait", "library_threads", "memory"),
    *("method_retries", "metrics", "named_actors", "nested", "process_oddities", "progress", "psutil"),
    *("queue", "references", "tasks", "threads", "values"),
)

DIFFERENCES = {
    "Errors have Ray's words": (
        "actors.py::test_a_constructor_argument_that_failed_is_told_by_every_call",
        "actors.py::test_a_name_is_what_a_call_and_its_errors_are_called",
        "errors.py::test_a_result_that_cannot_be_pickled_names_itself",
        "errors.py::test_exceptions_keep_type_and_attributes",
        "errors.py::test_the_error_has_function_and_remote_traceback",
        "errors.py::test_the_error_is_a_task_error_and_of_the_users_own_type",
        "graphs.py::test_arguments_without_nodes_stay_what_they_are",
        "init.py::test_a_question_before_init",
        "state.py::test_a_task_that_has_ended_is_still_known",
        "state.py::test_each_attempt_of_a_task_has_a_row",
        "state.py::test_workers_that_have_ended_are_listed_with_the_reason",
        "tasks.py::test_a_name_is_what_the_task_and_its_errors_are_called",
        "util.py::test_the_error_has_the_path_to_what_cannot_be_pickled",
    ),
    "A demand that no node can meet waits": (
        "init.py::test_a_demand_for_one_node_does_not_wait_for_others",
        "init.py::test_parts_of_a_byte_of_memory_are_dropped",
        "labels.py::test_a_fallback_takes_the_place_of_a_selector_that_no_node_meets",
        "labels.py::test_a_label_strategy_that_does_not_hold_is_refused",
        "labels.py::test_a_selector_that_a_node_meets_needs_no_fallback",
        "labels.py::test_a_selector_that_holds_finds_a_node",
        "labels.py::test_a_selector_that_no_node_meets_is_refused_with_the_reason",
        "labels.py::test_bundles_have_selectors",
        "labels.py::test_when_no_fallback_is_met_the_first_selector_says_why",
        "node_resources.py::test_errors_do_not_name_what_every_node_offers",
        "node_resources.py::test_memory_is_offered_without_being_told",
        "placement_groups.py::test_a_kind_of_accelerator_is_a_resource",
        "placement_groups.py::test_what_can_never_be_placed_is_refused_and_says_what_lacks",
        "resources.py::test_a_demand_that_nobody_asks_for_again_does_no_harm",
        "resources.py::test_an_infeasible_demand_fails_at_once_with_what_is_lacking",
        "resources.py::test_an_infeasible_demand_of_a_task_fails_too",
    ),
    "Resources, labels, rows and the result of init have what Ray has in them": (
        "accelerator_types.py::test_a_node_with_neuron_cores_is_labelled_with_their_type",
        "first_verb.py::test_init_returns_the_addresses_as_a_mapping",
        "labels.py::test_nodes_have_their_labels_and_their_name",
        "resources.py::test_cluster_resources_are_those_of_all_nodes",
        "resources.py::test_nodes_says_what_each_node_has",
        "state.py::test_an_actors_context_in_full",
        "state.py::test_nodes_are_listed",
        "state.py::test_objects_are_listed_with_what_keeps_them",
        "state.py::test_rows_answer_to_rays_names",
        "state.py::test_tasks_are_summarized_by_name",
        "state.py::test_the_drivers_context_in_full",
    ),
    "A task without GPUs has the CUDA_VISIBLE_DEVICES of the node": (
        "init.py::test_gpus_that_the_driver_may_see_are_hidden_from_tasks_that_asked_for_none",
        "rays_spellings.py::test_who_holds_no_gpu_sees_none",
        "resources.py::test_cuda_is_shown_the_gpus_of_the_lease_and_none_without_one",
        "resources.py::test_what_an_actor_writes_of_its_gpus_is_its_own",
    ),
    "Arguments and names that only dualray has are refused or mean something else": (
        "first_verb.py::test_an_unknown_argument_names_the_nearest",
        "generators.py::test_num_returns_streaming_takes_any_iterator_and_nothing_else",
        "helpers.py::test_words_are_not_said_at_all_when_it_is_switched_off",
        "init.py::test_an_argument_of_the_other_mode_where_the_mode_came_from_outside",
        "init.py::test_init_refuses_what_cannot_be_and_starts_nothing",
        "joining_nodes.py::test_a_node_that_is_removed_gracefully_finishes_its_tasks_and_hands_on_its_objects",
        "rays_spellings.py::test_modules_stand_where_ray_has_them",
        "util.py::test_a_serializer_is_for_classes_that_pickle_asks_about",
    ),
    "A generator runs to its end when nobody takes its items": (
        "generators.py::test_when_its_consumer_stops_the_generator_is_closed",
    ),
    "Options that Ray deprecates warn": (
        "placement_groups.py::test_the_options_of_earlier_releases_name_a_group",
        "rays_spellings.py::test_a_placement_group_is_made_by_function_and_module",
        "rays_spellings.py::test_a_task_leaves_the_group_that_captures_it",
    ),
    "An unknown key of a runtime_env is ignored, with a warning": (
        "runtime_env.py::test_an_environment_with_an_unknown_key_is_refused",
    ),
    "The timeline has Ray's rows for the parts of a task": (
        "timeline.py::test_a_run_without_a_decision_log_has_its_tasks",
        "timeline.py::test_the_timeline_of_the_program",
    ),
    "imap of a pool gives the errors instead of raising them": ("pools.py::test_what_a_call_raises_is_raised_by_get",),
}
"""Tests whose dualray under the name ray does what Ray does, and another thing under its own, by reason."""


def main(arguments: list[str]) -> int:
    """Copy the tests, run them, and return pytest's exit code."""
    copy_tests()
    is_whole = "--all" in arguments
    paths = ["tests/conformance"] if is_whole else [f"tests/conformance/test_{name}.py" for name in CHOSEN]
    return subprocess.call(
        [sys.executable, "-m", "pytest", *paths, *_deselected(), *(each for each in arguments if each != "--all")],
        cwd=COPY,
        env={**os.environ, VARIABLE: "1"},
    )


def _deselected() -> list[str]:
    """The options that leave out DIFFERENCES.

    Raises:
        LookupError: a test is not there any more.
    """
    options = []
    for test in (test for tests in DIFFERENCES.values() for test in tests):
        module, _, name = test.partition("::")
        if f"def {name}(" not in (ROOT / "tests" / "conformance" / f"test_{module}").read_text():
            raise LookupError(f"DIFFERENCES names {test}, which tests/conformance does not have")
        options.append(f"--deselect=tests/conformance/test_{test}")
    return options


def copy_tests() -> None:
    """Copy tests/ and the settings of pytest to build/through_ray, and change the imports of the conformance tests."""
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "tests", COPY / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", COPY)
    install()
    for path in sorted((COPY / "tests" / "conformance").glob("*.py")):
        path.write_text(through_ray(path.read_text()))


def through_ray(source: str) -> str:
    """The source of a module, in which ray takes the place of dualray where all imported names are Ray's."""
    lines = source.splitlines(keepends=True)
    for node in ast.walk(ast.parse(source)):
        at = getattr(node, "lineno", 0) - 1
        match node:
            case ast.Import(names=[ast.alias(name="dualray", asname="ray")]):
                lines[at] = lines[at].replace("import dualray as ray", "import ray")
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("dualray."):
                in_ray = f"ray.{module.removeprefix('dualray.')}"
                if _has_all(in_ray, [each.name for each in names]):
                    lines[at] = lines[at].replace(f"from {module} ", f"from {in_ray} ")
    text = "".join(lines)
    imported = importlib.import_module("ray")
    ours = {name for name in re.findall(r"\bray\.(\w+)", text) if not hasattr(imported, name)}
    if "import ray\n" not in text or not ours:
        return text
    text = re.sub(rf"\bray\.({'|'.join(sorted(ours))})\b", r"dualray.\1", text)
    return text.replace("import ray\n", "import dualray\nimport ray\n", 1)


def _has_all(module: str, names: list[str]) -> bool:
    try:
        found = importlib.import_module(module)
    except ImportError:
        return False
    return all(hasattr(found, name) for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
