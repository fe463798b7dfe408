"""The folded worker beside the whole one: the same commands for the same events, whatever comes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dualray.shared.machines.owner.owner import Owner
from dualray.shared.machines.owner.plain_worker import PlainWorker
from dualray.shared.model.commands import ForgetTasks, RunTask, RunTasks, Send
from dualray.shared.model.config import Config
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.events import (
    ClusterChanged,
    NodeDied,
    NodesDied,
    OwnerDied,
    Result,
    TaskPushed,
    TaskRan,
    TasksPushed,
    TasksRan,
    TaskUnwanted,
    WaitStarted,
)
from dualray.shared.model.ids import (
    Address,
    FunctionID,
    NodeID,
    WaitID,
    child_task_id,
    return_object_id,
    root_task_id,
)
from dualray.shared.model.resources import CPU, UNITS, Resources
from dualray.shared.model.specs import FunctionTemplate, NodeInfo, Ref, new_spec

NODE, WORKER = NodeID("node-1"), Address("node-1/w3")
CALLERS = (Address("driver-1"), Address("node-2/w0"))
ROOT = root_task_id("", 1)
ONE_CPU = Resources(((CPU, UNITS),))


def template(number, max_retries=3, max_calls=0):
    return FunctionTemplate(
        function_id=FunctionID(bytes([number]) * 16),
        name=f"f{number}",
        resources=ONE_CPU,
        placement=ONE_CPU,
        max_retries=max_retries,
        max_calls=max_calls,
    )


TEMPLATES = (template(0), template(1), template(2, max_retries=0), template(3, max_calls=2))


class Beside:
    """Both machines, and what their runner has been told to run."""

    def __init__(self):
        self.plain = PlainWorker(address=WORKER, node=NODE, config=Config())
        self.whole = Owner(address=WORKER, node=NODE, config=Config())
        self.now_ns = 0
        self.to_run = []
        self.made = 0
        self.last = None

    def hear(self, event):
        self.now_ns += 7
        commands = self.plain.handle(event, self.now_ns)
        assert commands == self.whole.handle(event, self.now_ns), event
        self.plain.check_invariants()
        for command in commands:
            if isinstance(command, RunTask):
                self.to_run.append((command.spec, command.attempt))
            elif isinstance(command, RunTasks):
                self.to_run += [(task.spec, task.attempt) for task in command.tasks]
            elif isinstance(command, ForgetTasks):
                forgotten = {task.spec.task_id for task in command.tasks}
                self.to_run = [task for task in self.to_run if task[0].task_id not in forgotten]
        return commands

    def push(self, caller, number, *, args_bytes=0, again=False, deps=()):
        self.made += 1
        task_id = child_task_id(ROOT, 0, self.made)
        spec = new_spec(task_id, TEMPLATES[number], CALLERS[caller], ROOT, args_bytes, deps, (), None, None)
        self.last = TaskPushed(
            spec=spec,
            attempt=0,
            reply_to=CALLERS[caller],
            again=again,
            inline_deps=tuple(ref.object_id for ref in deps),
        )
        self.hear(self.last)

    def push_several(self, caller, number, count):
        calls = []
        for _ in range(count):
            self.made += 1
            calls.append((child_task_id(ROOT, 0, self.made), 0, 10))
        self.last = TasksPushed(template=TEMPLATES[number], owner=CALLERS[caller], parent=ROOT, calls=tuple(calls))
        self.hear(self.last)

    def heard_twice(self):
        """A connection that has broken is made anew, and what was sent last is sent again."""
        if self.last is not None and self.to_run:
            self.hear(self.last)

    def ran(self, *, error=False, nested=False):
        if not self.to_run:
            return
        spec, attempt = self.to_run.pop(0)
        refs = (Ref(return_object_id(child_task_id(ROOT, 9, 9), 0), CALLERS[0]),) if nested else ()
        result = Result(object_id=return_object_id(spec.task_id, 0), size_bytes=8, inline=True, nested=refs)
        failure = ErrorInfo(kind=ErrorKind.APPLICATION, message="it raised") if error else None
        self.hear(TaskRan(task_id=spec.task_id, attempt=attempt, results=() if error else (result,), error=failure))

    def several_ran(self, count):
        ended = [self.to_run.pop(0) for _ in range(min(count, len(self.to_run)))]
        if ended:
            self.hear(TasksRan(outcomes=tuple((spec.task_id, attempt, 8, 5) for spec, attempt in ended)))

    def dies(self, caller):
        self.hear(OwnerDied(address=CALLERS[caller]))

    def node_dies(self, number):
        self.hear(NodeDied(node=NodeID(f"node-{number}"), incarnation=0))

    def nodes_die(self, *numbers):
        nodes = tuple(NodeID(f"node-{number}") for number in numbers)
        self.hear(NodesDied(nodes=nodes, incarnations=(0,) * len(nodes)))

    def unwanted(self, force):
        if self.to_run:
            spec, attempt = self.to_run[-1]
            self.hear(TaskUnwanted(task_id=spec.task_id, attempt=attempt, force=force, recursive=False))

    def cluster(self):
        info = NodeInfo(node=NODE, incarnation=0, total=ONE_CPU, store_bytes=1)
        self.hear(ClusterChanged(nodes=(info,)))

    def waits(self):
        """The task in hand blocks."""
        if self.to_run:
            ref = Ref(return_object_id(child_task_id(ROOT, 8, 8), 0), CALLERS[0])
            task_id = self.to_run[0][0].task_id
            self.hear(WaitStarted(wait_id=WaitID(1), refs=(ref,), num_ready=1, fetch=True, task_id=task_id))


callers = st.integers(0, 1)
common = st.one_of(
    st.tuples(st.just("push"), callers, st.sampled_from([0, 0, 0, 1]), st.sampled_from([0, 10])),
    st.tuples(st.just("push_several"), callers, st.sampled_from([0, 1]), st.integers(2, 40)),
    st.tuples(st.just("ran")),
    st.tuples(st.just("several_ran"), st.integers(1, 5)),
    st.tuples(st.just("heard_twice")),
    st.tuples(st.just("cluster")),
    st.tuples(st.just("node_dies"), st.just(7)),
    st.tuples(st.just("nodes_die"), st.just(7), st.just(8)),
)
rare = st.one_of(
    st.tuples(st.just("push_again"), callers),
    st.tuples(st.just("push_with"), callers),
    st.tuples(st.just("push"), callers, st.sampled_from([2, 3]), st.just(0)),
    st.tuples(st.just("fails")),
    st.tuples(st.just("returns_a_reference")),
    st.tuples(st.just("dies"), callers),
    st.tuples(st.just("node_dies"), st.just(2)),
    st.tuples(st.just("nodes_die"), st.just(7), st.just(2)),
    st.tuples(st.just("unwanted"), st.booleans()),
    st.tuples(st.just("waits")),
)


@settings(max_examples=150, deadline=None)
@given(first=st.lists(common, max_size=30), then=rare, after=st.lists(st.one_of(common, rare), max_size=20))
def test_the_folded_machine_answers_as_the_whole_one(first, then, after):
    both = Beside()
    waited = False
    for what, *arguments in (*first, then, *after):
        match what:
            case "push":
                caller, number, args_bytes = arguments
                both.push(caller, number, args_bytes=args_bytes)
            case "push_again":
                both.push(arguments[0], 0, again=True)
            case "push_with":
                dep = Ref(return_object_id(child_task_id(ROOT, 7, 7), 0), CALLERS[arguments[0]])
                both.push(arguments[0], 0, deps=(dep,))
            case "fails":
                both.ran(error=True)
            case "returns_a_reference":
                both.ran(nested=True)
            case "waits":
                if not waited:
                    waited = True
                    both.waits()
            case _:
                getattr(both, what)(*arguments)


def test_plain_tasks_leave_it_folded():
    both = Beside()
    both.cluster()
    for _ in range(3):
        both.push(0, 0)
        both.push(0, 0)
        both.push_several(1, 1, 40)
        while both.to_run:
            both.several_ran(3)
    both.node_dies(7)
    assert both.plain.owner is None


def test_the_shortest_form_says_the_same():
    """What a runner may do in place of `handle`, where no rows are kept."""
    both = Beside()
    short = PlainWorker(address=WORKER, node=NODE, config=Config(), keeps_rows=False)
    task = new_spec(child_task_id(ROOT, 0, 1), TEMPLATES[0], CALLERS[0], ROOT, 0, (), (), None, None)
    pushed = TaskPushed(spec=task, attempt=0, reply_to=CALLERS[0])
    assert short.starts(pushed, 5)
    both.hear(pushed)
    first = short.report(8, 12)
    commands = both.hear(TasksRan(outcomes=((task.task_id, 0, 8, 7),)))
    assert [first] == [command.message for command in commands if isinstance(command, Send)]
    again = new_spec(child_task_id(ROOT, 0, 2), TEMPLATES[0], CALLERS[0], ROOT, 0, (), (), None, None)
    pushed = TaskPushed(spec=again, attempt=0, reply_to=CALLERS[0])
    assert short.starts(pushed, 20)
    assert not short.starts(pushed, 20), "it is busy"
    both.hear(pushed)
    commands = both.hear(TasksRan(outcomes=((again.task_id, 0, 8, 11),)))
    assert [short.report(8, 31)] == [command.message for command in commands if isinstance(command, Send)]
