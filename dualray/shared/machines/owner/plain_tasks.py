"""The rule of the fast path: which tasks need nothing but what comes with them.

Theory of operation. A plain task has no arguments elsewhere, refers to nothing, is no actor's, and may run again if its
worker dies. Nothing follows from it but its result: a worker may take it without looking further, hand several of them
over at once, and report them together.

All runs ask here. The executor of a whole owner hands such tasks over together; a folded worker (plain_worker.py) takes
nothing else, and is what executed and modelled workers are until more is asked of them. A recorded run that runs again
knows what its tasks do: there a task is as plain when its arguments have come along.

Guarantees: looks at tasks alone.
"""

from __future__ import annotations

from typing import Final

from dualray.shared.model.events import TaskPushed
from dualray.shared.model.specs import FunctionTemplate

RUN_MAX: Final = 32
"""Tasks handed over behind the one in hand."""


def runs_alone(template: FunctionTemplate) -> bool:
    """Whether a task must not be tried twice, or may be the last of its process: nothing begins before its report."""
    return template.max_retries == 0 or template.max_calls > 0


def is_plain(pushed: TaskPushed) -> bool:
    """Whether a task needs nothing but what comes along, and may run with others: the rule."""
    spec = pushed.spec
    if spec.deps or spec.nested or spec.creates is not None or spec.actor_id is not None or pushed.again:
        return False
    template = spec.template
    return template.max_retries != 0 and not template.max_calls  # as `runs_alone`, without a call


def goes_with_others(pushed: TaskPushed) -> bool:
    """Whether a task, or a call of an actor, may be handed over together with others."""
    spec = pushed.spec
    return is_plain(pushed) if spec.actor_id is None else spec.stands_alone and not pushed.again


def is_reported_at_once(pushed: TaskPushed) -> bool:
    """Whether nothing may begin on a process before a task is reported: see executor.py."""
    return pushed.again or (pushed.spec.actor_id is None and runs_alone(pushed.spec.template))


def is_reported_with(pushed: TaskPushed, first: TaskPushed) -> bool:
    """Whether one message reports both tasks: calls of one function by one owner, in the same attempt."""
    return (
        pushed.spec.template is first.spec.template
        and pushed.reply_to == first.reply_to
        and pushed.attempt == first.attempt
    )


def brings_its_arguments(pushed: TaskPushed) -> bool:
    """Whether each argument has come along from the process that has pushed the task, which owns them all."""
    deps = pushed.spec.deps
    return not deps or (len(pushed.inline_deps) >= len(deps) and not any(owner != pushed.reply_to for _, owner in deps))
