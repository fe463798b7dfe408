"""How Ray words the error of a task: a heading that says what has failed and where, and the user's frames alone."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any, Final

from dualray import runtime
from dualray.as_ray import structured_logs
from dualray.exceptions import TaskError
from dualray.shared.core.submission import full_name

FIRST: Final = "Traceback (most recent call last):"
_FRAME: Final = re.compile(r'  File "[^"]*/dualray/(?!as_ray/site/)[^"]*", line ')
_NOT_COMPUTED: Final = "  At least one of the input arguments for this task could not be computed:"
_UNREADABLE: Final = (
    "Failed to deserialize exception. Refer to https://docs.ray.io/en/latest/ray-core/objects/serialization.html"
    "#custom-serializers-for-exceptions for more information."
)
_ESCAPE: Final = re.compile(r"\x1b\[\d*m")
_EXIT_CODE: Final = re.compile(r"exited with code (\d+)")
_COLOUR: Final = "\x1b[36m"
_ERROR_TYPES: Final = {
    "APPLICATION": "TASK_EXECUTION_EXCEPTION",
    "WORKER_CRASHED": "WORKER_DIED",
    "WORKER_UNREACHABLE": "WORKER_DIED",
    "TASK_UNSCHEDULABLE": "TASK_UNSCHEDULABLE_ERROR",
    "ACTOR_UNSCHEDULABLE": "ACTOR_UNSCHEDULABLE_ERROR",
    "TASK_GROUP_REMOVED": "TASK_PLACEMENT_GROUP_REMOVED",
    "ACTOR_GROUP_REMOVED": "ACTOR_PLACEMENT_GROUP_REMOVED",
    "RECONSTRUCTION_FAILED": "OBJECT_UNRECONSTRUCTABLE_MAX_ATTEMPTS_EXCEEDED",
    "STORE_FULL": "OUT_OF_DISK_ERROR",
    "UNREACHABLE": "OBJECT_LOST",
}
"""Ray's names of the kinds of errors that dualray calls something else."""
NOT_STARTED: Final = "Ray has not been started yet. You can start Ray with 'ray.init()'."
STARTED_TWICE: Final = (
    "Maybe you called ray.init twice by accident? This error can be suppressed by passing in "
    "'ignore_reinit_error=True' or by calling 'ray.shutdown()' prior to 'ray.init()'."
)
NEVER_REPEATED: Final = "__ray_testing_never_deduplicate__"
"""A line with this in it is always shown: Ray's own tests print it."""
_log: Final = logging.getLogger("ray.exceptions")
_unknown_keys: Final[set[str]] = set()
"""Keys of runtime environments that were named in a warning."""
_END: Final = "\x1b[39m"


def heading(name: str, instance: Any) -> str:
    """Return the heading above the frames of a task that failed here. `instance`: the actor, for a method."""
    verbs = runtime.current("heading").verbs
    actor = verbs.context().actor_id
    place = f"pid={os.getpid()}, ip={verbs.ip_address}"
    if actor is not None:
        name = name if "." in name or instance is not None else f"{name}.__init__"
        place += f", actor_id={actor}, repr={_repr(instance, name)}"
    return f"{_COLOUR}ray::{name}(){_END} ({place})"


def heading_here(name: str) -> str:
    """Return the heading of a task that this process had called, and that could not run."""
    verbs = runtime.current("heading_here").verbs
    return f"{_COLOUR}ray::{name}(){_END} (pid={os.getpid()}, ip={verbs.ip_address})"


def headings(names: Sequence[str], heading: str) -> str:
    """Return the heading of a failed task below those of tasks that needed its result, the last task first."""
    above = (f"{heading_here(name)}\n{_NOT_COMPUTED}\nray.exceptions.RayTaskError: " for name in names)
    return "".join(above) + heading


def unreadable(heading: str) -> str:
    """Return the heading of a task whose exception cannot be unpickled."""
    return f"{_UNREADABLE}\nOriginal exception:\nray.exceptions.RayTaskError: {heading}"


def of_unpicklable(target: Any) -> str:
    """Return what Ray's message calls a function or an actor class that cannot be pickled."""
    return f"the {'actor class' if isinstance(target, type) else 'function'} {full_name(target)}"


def unpicklable(what: str, value: Any, said: str) -> str:
    """Return the message about a value that cannot be pickled; `said` is dualray's, for which Ray may have no other."""
    try:
        shown = repr(value)
    except Exception as error:  # noqa: BLE001 - it is the user's
        shown = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    kind, of, name = what.partition(" of ")
    if what == "the value" and not isinstance(value, TaskError):
        what = f"the put value {shown}"
    elif of and kind.startswith("argument "):
        what = f"the argument {shown} for a task or actor {name}"
    elif not what.startswith(("the function ", "the actor class ")):
        return said
    line = "=" * 80
    report = f"{line}\nChecking Serializability of {shown}\n{line}\n{said}\n{line}"
    return f"Could not serialize {what}:\n{report}"


def error_fields(kind: str, message: str) -> dict[str, str]:
    """Return the fields of a task's error, as Ray's rows have them: no colours, and a heading over the user's error."""
    text = _ESCAPE.sub("", message)
    if kind == "APPLICATION":
        text = f"User exception:\n{text.rstrip()}"
    return {"error_type": _ERROR_TYPES.get(kind, kind), "error_message": text}


def exit_detail(why: str) -> str:
    """Return how a worker has ended with the words that programs for Ray look for."""
    code = _EXIT_CODE.search(why)
    if code is not None:
        return f"{why} (Worker exits with an exit code {code[1]}.)"
    if "killed by SIGKILL" in why:
        return f"{why} (The OOM killer of the system also ends processes by SIGKILL.)"
    return why


def takes_unread(error: Exception) -> bool:
    """Whether a task's error that no process has read is not to be printed.

    RAY_IGNORE_UNHANDLED_ERRORS is set, or the program has put a function in the place of Ray's, as Ray's own tests do.
    """
    if "RAY_IGNORE_UNHANDLED_ERRORS" in os.environ:
        return True
    module = sys.modules.get("ray._private.worker")
    handler = vars(module).get("_unhandled_error_handler") if module is not None else None
    if handler is None:
        return False
    handler(error)
    return True


def warn_of_plain_error(cause_type: type[BaseException], why: Exception) -> None:
    """Say that `except` with the user's own class will not catch an error."""
    _log.warning(
        "User exception type %s in RayTaskError can't be subclassed: %s. This exception is raised as RayTaskError "
        "only. You can use `ray_task_error.cause` to access the user exception.",
        cause_type.__name__,
        why,
    )


def warn_of_unknown_key(what: str, key: str, hint: str) -> None:
    """Say once that a key of a runtime environment has no effect; Ray ignores it, too."""
    if key not in _unknown_keys:
        _unknown_keys.add(key)
        _log.warning("%s has no key %r, so dualray ignores it.%s", what, key, hint)


def rules_of_lines() -> tuple[float, re.Pattern[str] | None, re.Pattern[str] | None, bool, str]:
    """Which lines of workers count as repeated, by Ray's variables: the window in seconds, the lines that are always
    shown, and those that never are. And whether the names of the workers stand before their lines, and how the first
    count explains itself.

    Raises:
        ValueError: a variable has no number or no regular expression; the message names it.
    """
    says_no = os.environ.get("RAY_DEDUP_LOGS", "1").lower() in ("0", "false")
    return (
        0.0 if says_no else _number("RAY_DEDUP_LOGS_AGG_WINDOW_S", 5),
        _pattern("RAY_DEDUP_LOGS_ALLOW_REGEX", NEVER_REPEATED),
        _pattern("RAY_DEDUP_LOGS_SKIP_REGEX", ""),
        structured_logs.names_processes(),
        " (dualray shows repeated lines once, as Ray does. Set RAY_DEDUP_LOGS=0 to show them all)",
    )


def _number(variable: str, default: float) -> float:
    text = os.environ.get(variable) or str(default)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{variable}={text!r} must be a number of seconds") from None


def _pattern(variable: str, default: str) -> re.Pattern[str] | None:
    text = os.environ.get(variable, default)
    try:
        return re.compile(text) if text else None
    except re.error as error:
        raise ValueError(f"{variable}={text!r} must be a regular expression: {error}") from None


def doc_version() -> str:
    """The version of Ray's documentation that messages name: that of `ray.__version__`."""
    return f"releases-{getattr(sys.modules.get('ray'), '__version__', 'latest')}"


def warn_of_old_group_option() -> None:
    """Say what stands in the place of `placement_group=`."""
    pages = f"https://docs.ray.io/en/{doc_version()}/ray-core/package-ref.html"
    warnings.warn(
        f"placement_group parameter is deprecated. Use scheduling_strategy=PlacementGroupSchedulingStrategy(...) "
        f"instead, see the usage at {pages}#ray-remote.",
        DeprecationWarning,
        stacklevel=6,
    )


def _repr(instance: Any, name: str) -> str:
    if instance is None:
        return name.partition(".")[0]  # its constructor has failed
    try:
        return repr(instance)
    except Exception as error:  # noqa: BLE001 - it is the user's
        return f"<{type(instance).__name__}, whose repr raised {error!r}>"


def worded(heading: str, remote_traceback: str) -> str:
    """A traceback as Ray prints it."""
    lines: list[str] = []
    is_within = False  # a frame of dualray's own
    for line in remote_traceback.strip().split("\n"):
        if is_within and line.startswith("    "):
            continue
        is_within = _FRAME.match(line) is not None
        if not is_within:
            lines.append(heading if line == FIRST else _OWN_NAME.sub("ray.exceptions.", line))
    return "\n".join(lines if heading in lines else [heading, *lines])


_OWN_NAME = re.compile(r"^dualray\.exceptions\.(?=\w+(:|$))")
"""The beginning of a line that names one of dualray's exceptions."""
