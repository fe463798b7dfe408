"""The rule of the fast path: each reason for which a task is not plain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dualray.shared.machines.owner.plain_tasks import (
    brings_its_arguments,
    goes_with_others,
    is_plain,
    is_reported_at_once,
)
from dualray.shared.model.events import TaskPushed
from dualray.shared.model.ids import ActorID, Address, FunctionID, child_task_id, return_object_id, root_task_id
from dualray.shared.model.resources import CPU, UNITS, Resources
from dualray.shared.model.specs import FunctionTemplate, Ref, new_spec

CALLER, OTHER = Address("driver-1"), Address("node-2/w0")
ROOT = root_task_id("", 1)
ONE_CPU = Resources(((CPU, UNITS),))
TEMPLATE = FunctionTemplate(
    function_id=FunctionID(bytes(16)), name="f", resources=ONE_CPU, placement=ONE_CPU, max_retries=3
)
ARGUMENT = Ref(return_object_id(child_task_id(ROOT, 0, 7), 0), CALLER)
ACTOR = ActorID(child_task_id(ROOT, 0, 8))


def push(template=TEMPLATE, *, deps=(), nested=(), actor=None, again=False, inline=()):
    spec = new_spec(child_task_id(ROOT, 0, 1), template, CALLER, ROOT, 10, deps, nested, actor, None)
    return TaskPushed(spec=spec, attempt=0, reply_to=CALLER, again=again, inline_deps=inline)


def test_a_call_that_needs_nothing_is_plain():
    assert is_plain(push())
    assert goes_with_others(push())
    assert not is_reported_at_once(push())


@pytest.mark.parametrize(
    "pushed",
    [
        push(deps=(ARGUMENT,), inline=(ARGUMENT.object_id,)),
        push(nested=(ARGUMENT,)),
        push(again=True),
        push(replace(TEMPLATE, max_retries=0)),
        push(replace(TEMPLATE, max_calls=1)),
    ],
)
def test_a_call_that_needs_or_may_do_more_is_not_plain(pushed):
    assert not is_plain(pushed)
    assert not goes_with_others(pushed)


def test_a_call_of_an_actor_is_not_plain_and_goes_with_others():
    assert not is_plain(push(actor=ACTOR))
    assert goes_with_others(push(actor=ACTOR))
    assert goes_with_others(push(replace(TEMPLATE, max_retries=0), actor=ACTOR))
    assert not goes_with_others(push(actor=ACTOR, deps=(ARGUMENT,)))


@pytest.mark.parametrize("template", [replace(TEMPLATE, max_retries=0), replace(TEMPLATE, max_calls=1)])
def test_what_must_not_be_tried_twice_or_may_be_the_last_is_reported_at_once(template):
    assert is_reported_at_once(push(template))
    assert not is_reported_at_once(push(template, actor=ACTOR))


def test_arguments_come_along_when_all_do_and_their_owner_has_pushed():
    assert brings_its_arguments(push())
    assert brings_its_arguments(push(deps=(ARGUMENT,), inline=(ARGUMENT.object_id,)))
    assert not brings_its_arguments(push(deps=(ARGUMENT,)))
    foreign = Ref(ARGUMENT.object_id, OTHER)
    assert not brings_its_arguments(push(deps=(foreign,), inline=(foreign.object_id,)))
