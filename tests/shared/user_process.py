"""A driver or worker of a cluster in memory (harness.py): its tasks, with bodies in the place of functions."""

from __future__ import annotations

from collections import deque

from dualray.shared.model import events as e
from dualray.shared.model.errors import ErrorInfo, ErrorKind
from dualray.shared.model.ids import TaskID, return_object_id
from dualray.shared.model.specs import Ref, Streaming, TaskSpec
from tests.shared.processes import Content, Failed, Fiber, Frame, Interrupted, PyRef, Runnable
from tests.shared.steps import INLINE_MAX, Body, Out
from tests.shared.user_code import StepTaker


class UserProcess(StepTaker):
    """A driver or worker: what its core worker does, with bodies instead of functions."""

    def _execute(self, task: Runnable) -> Fiber:
        spec = task.spec
        actor_id = spec.actor_id or (spec.creates.actor_id if spec.creates is not None else None)
        frame = self.frame = Frame(task_id=spec.task_id, attempt=task.attempt, actor_id=actor_id)
        self.cluster.started(self, task)
        self._take_environment(spec)
        body = self.payloads[spec.task_id].body
        assert body is not None
        results: list[e.Result] = []
        error: ErrorInfo | None = None
        returned: list[PyRef] = []
        try:
            unread = deque(ref.object_id for ref in spec.deps)
            try:
                while unread:
                    self.read(unread.popleft(), frame)
            finally:
                self.release_unread(unread)
            for ref in self.payloads[spec.task_id].nested:
                self.adopt(ref, frame)
            for step in body.steps:
                if self._takes_interrupt() and spec.actor_id is None:
                    raise Interrupted
                yield from self.take(step, frame)
            if spec.template.streaming:
                yield from self._make_items(task, body, frame)
                if not self.is_alive:
                    return
                yield from self._end_items(task, len(body.outs), frame, results)
            elif self._goes(task, body, frame):
                return
            if body.ending == "raise" and task.attempt < body.bad_attempts:
                raise Failed
            if spec.creates is None and not spec.template.streaming:
                for index, out in enumerate(body.outs):
                    content = self._content(out.nested, frame)
                    returned += content[1]
                    yield from self._store_result(task, index, out, content[0], results)
        except Failed:
            self.payloads[return_object_id(spec.task_id, 0)] = Content()
            for result in results[1:]:
                if result.inline:
                    del self.payloads[result.object_id]
            results = []
            error = ErrorInfo(kind=ErrorKind.APPLICATION, message="it raised")
        except Interrupted:
            error = ErrorInfo(kind=ErrorKind.TASK_CANCELLED, message="it was cancelled")
        self.current_task = None
        self._drop_loans(frame)
        if spec.template.streaming:
            self.handle(e.ItemsEnded(task_id=spec.task_id, attempt=task.attempt))
        self._report(e.TaskRan(task_id=spec.task_id, attempt=task.attempt, results=tuple(results), error=error))
        for ref in returned:
            self.let_go(ref)
        self.drop_frame(frame)

    def _goes(self, task: Runnable, body: Body, frame: Frame) -> bool:
        """Whether the attempt ends its process, or its actor, in place of a result."""
        if body.ending == "exit" and task.attempt < body.bad_attempts and self.cluster.faults_allowed:
            self.cluster.nodes[self.node].end_worker(self.address, "exited with code 1")
            return True
        if body.ending == "leave" and task.spec.actor_id is not None:
            self.current_task = None
            self.drop_frame(frame)
            self.handle(e.ActorExitAsked(task_id=task.spec.task_id))
            return True
        return False

    def _drop_loans(self, frame: Frame) -> None:
        """A function has returned that was lent its arguments: seldom has it kept them."""
        if self.machine.values.pins.loans and self.cluster.rng.random() < 0.7:
            views, frame.views = frame.views, []
            for object_id in views:
                self.opened[object_id] -= 1
                self.handle(e.ViewReleased(object_id=object_id))

    def _take_environment(self, spec: TaskSpec) -> None:
        """A worker that has run in one environment never runs in another."""
        if spec.actor_id is None:
            wanted = spec.template.runtime_env
            assert self.environment in (None, wanted), f"{self.address} is of {self.environment!r}, not of {wanted!r}"
            self.environment = wanted

    def _make_items(self, task: Runnable, body: Body, frame: Frame) -> Fiber:
        """What a generator does: its bad endings come in the middle."""
        spec = task.spec
        for index, out in enumerate(body.outs):
            if index == len(body.outs) // 2:
                self._end_badly(task, body)
                if not self.is_alive:
                    return
            content, refs = self._content(out.nested, frame)
            made: list[e.Result] = []
            try:
                yield from self._store_result(task, index + 1, out, content, made)
                self.handle(
                    e.ItemMade(
                        task_id=spec.task_id,
                        attempt=task.attempt,
                        owner=spec.owner,
                        result=made[0],
                        ahead_max=spec.template.items_ahead_max,
                    )
                )
            finally:
                for ref in refs if self.is_alive else ():
                    self.let_go(ref)
            production = self.machine.production
            room = production.room_for(spec.task_id, task.attempt)
            if room is not None:
                wait_id = self._new_wait()
                started = e.WaitStarted(
                    wait_id=wait_id,
                    refs=(Ref(room, self.address),),
                    num_ready=1,
                    fetch=False,
                    task_id=spec.task_id,
                )
                yield from self._await_in_task(started, wait_id, frame)
            if self._takes_interrupt():
                raise Interrupted
            if not production.is_wanted(spec.task_id, task.attempt):
                return
        if not body.outs:
            self._end_badly(task, body)

    def _end_badly(self, task: Runnable, body: Body) -> None:
        if task.attempt < body.bad_attempts:
            if body.ending == "exit" and self.cluster.faults_allowed:
                self.cluster.nodes[self.node].end_worker(self.address, "exited with code 1")
            elif body.ending == "raise":
                raise Failed

    def _end_items(self, task: Runnable, count: int, frame: Frame, results: list[e.Result]) -> Fiber:
        """The result of the call: nothing, or a value that refers to all items."""
        spec = task.spec
        nested: tuple[Ref, ...] = ()
        if spec.template.streaming is Streaming.DYNAMIC:
            nested = tuple(Ref(return_object_id(spec.task_id, index), spec.owner) for index in range(1, count + 1))
            for ref in nested:
                self.adopt(ref, frame)
        yield from self._store_result(task, 0, Out(), Content(nested=nested), results)

    def _report(self, ran: e.TaskRan) -> None:
        """As the core worker does: small results wait for those of the tasks behind them, unless a generator's."""
        if self._is_of_generator(ran.task_id) or not self._waits_for_others(ran):
            self.handle(ran)

    def _is_of_generator(self, task_id: TaskID) -> bool:
        current = self.machine.executor.current
        pushed = [current, *self.machine.executor.handed]
        return any(
            each is not None and each.spec.task_id == task_id and each.spec.template.streaming for each in pushed
        )

    def _waits_for_others(self, ran: e.TaskRan) -> bool:
        if (self.to_run or self.ran) and ran.error is None and len(ran.results) == 1:
            [result] = ran.results
            if result.inline and not result.nested and not self.machine.values.borrows.unacknowledged:
                self.ran.append((ran.task_id, ran.attempt, result.size_bytes, 1000))
                if not self.to_run:
                    self.take_in_ran()
                elif len(self.ran) == 1:
                    self.later("take in", self.take_in_ran)
                return True
        return False

    def _store_result(self, task: Runnable, index: int, out: Out, content: Content, results: list[e.Result]) -> Fiber:
        object_id = return_object_id(task.spec.task_id, index)
        inline = out.size <= INLINE_MAX
        if inline:
            self.payloads[object_id] = content
        else:
            retries = task.spec.template.max_retries
            remakeable = task.spec.actor_id is None and (retries < 0 or task.attempt < retries)
            yield from self._write(object_id, out.size, content, task.spec.owner, remakeable)
            self.handle(e.SpaceWritten(object_id=object_id))
        results.append(e.Result(object_id=object_id, size_bytes=out.size, inline=inline, nested=content.nested))
