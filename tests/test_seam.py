"""An engine with references of its own fits below the handles: here one without a core, which runs calls in place."""

from __future__ import annotations

import ast
import itertools
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pytest

import dualray
from dualray import runtime
from dualray.exceptions import TaskError
from dualray.options import ActorOptions, MethodOptions, Returns, TaskOptions
from dualray.user_verbs import ActorInfo, ActorLimits, CallContext, ClassRequest, Collect, Shipped
from tests.structure import ROOT


class Slot:
    """This engine's reference: it holds the value itself, and nothing that the core knows."""

    def __init__(self, number: int, value: Any = None, error: BaseException | None = None) -> None:
        self.object_id = b"slot-%d" % number
        self.value, self.error = value, error


class Prepared(NamedTuple):
    """A function, class or method of this engine."""

    target: Any
    returns: Returns
    captured: bool = False


class PlaceVerbs:
    """`UserVerbs`, as far as the tests below ask."""

    is_closed = False
    runtime_env = ""
    namespace = "here"

    def __init__(self) -> None:
        self.slots: dict[bytes, Slot] = {}
        self.counts: dict[bytes, int] = {}
        self._numbers = itertools.count()
        self.prepared: list[TaskOptions | ActorOptions | MethodOptions] = []

    def _new(self, value: Any = None, error: BaseException | None = None) -> Slot:
        slot = Slot(next(self._numbers), value, error)
        self.slots[slot.object_id] = slot
        self.counts[slot.object_id] = 1
        return slot

    def adopt(self, slot: Slot) -> None:
        self.counts[slot.object_id] += 1

    def drop(self, object_id: bytes) -> None:
        self.counts[object_id] -= 1

    def pin(self, slot: Slot) -> None:
        self.counts[slot.object_id] += 1

    def parts_of(self, slot: Slot) -> tuple[Any, ...]:
        return (slot.object_id,)

    def find(self, object_id: bytes) -> Slot | None:
        return self.slots.get(object_id)

    def revive(self, object_id: bytes) -> Slot:
        self.counts[object_id] += 1
        return self.slots[object_id]

    def captures_children(self) -> bool:
        return False

    def prepare_function(
        self,
        target: Any,
        options: TaskOptions,
        returns: Returns,
        name: str,
        *,
        captured: bool,
        collect: Any,
        shipped: Shipped | None = None,
    ) -> Prepared:
        self.prepared.append(options)
        return Prepared(target, returns, captured)

    def call(self, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Slot:
        plain = [arg.ref.value if isinstance(arg, dualray.ObjectRef) else arg for arg in args]
        try:
            return self._new(prepared.target(*plain, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the test's function
            return self._new(error=error)

    def submit(self, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Slot]:
        return [self._new(value) for value in prepared.target(*args, **kwargs)]

    def put(self, value: Any) -> Slot:
        return self._new(value)

    def get(self, slots: Sequence[Slot], timeout_ns: int | None) -> list[Any]:
        for slot in slots:
            if slot.error is not None:
                raise TaskError("f", "traceback", slot.error)
        return [slot.value for slot in slots]

    def wait(self, slots: Sequence[Slot], **options: Any) -> set[bytes]:
        return {slot.object_id for slot in slots}

    def prepare_class(self, request: ClassRequest) -> Prepared:
        self.prepared.append(request.options)
        return Prepared(request.target, Returns(1))

    def create_actor(self, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ActorInfo:
        slot = self._new(prepared.target(*args, **kwargs))
        return ActorInfo(slot, prepared.target.__name__, "any name", ActorLimits(0))

    def prepare_method(
        self, actor: ActorInfo, name: str, options: MethodOptions, returns: Returns, *, is_last: bool, collect: Collect
    ) -> Prepared:
        return Prepared(name, returns)

    def call_method(self, actor: Slot, prepared: Prepared, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Slot:
        return self._new(getattr(actor.value, prepared.target)(*args, **kwargs))

    def context(self) -> CallContext:
        return CallContext(
            job_id="01",
            node_id="place",
            worker_id="place/1",
            task_id=None,
            task_name=None,
            function_name=lambda: None,
            attempt=0,
            actor_id=None,
            actor_name=None,
            is_cancelled=False,
            is_restarted=False,
            placement_group_id=None,
            captures_children=False,
            accelerators={},
            resources={},
        )


class PlaceRuntime:
    """The runtime of that engine."""

    mode = "place"
    models_calls = False

    def __init__(self) -> None:
        self.verbs = PlaceVerbs()


@pytest.fixture
def verbs() -> Iterator[PlaceVerbs]:
    engine: Any = PlaceRuntime()
    previous = runtime.set_current(engine)
    yield engine.verbs
    runtime.set_current(previous)


def test_functions_run_and_references_are_resolved(verbs):
    @dualray.remote(num_cpus=2)
    def add(x: int, y: int) -> int:
        return x + y

    first = add.remote(1, 2)
    assert dualray.get(add.remote(first, 4)) == 7
    assert verbs.prepared[0].num_cpus == 2, "options arrive as users wrote them"
    assert len(verbs.prepared) == 1, "a function is prepared once"
    assert dualray.wait([first], num_returns=1) == ([first], [])


def test_several_results_are_several_references(verbs):
    @dualray.remote(num_returns=2)
    def both() -> tuple[int, int]:
        return 1, 2

    assert dualray.get(list(both.remote())) == [1, 2]


def test_errors_are_raised_by_get(verbs):
    @dualray.remote
    def fails() -> None:
        raise ValueError("no")

    ref = fails.remote()
    with pytest.raises(TaskError, match="f"):
        dualray.get(ref)


def test_references_are_counted_and_pickled_by_the_engines_own_parts(verbs):
    ref = dualray.put("a value")
    object_id = ref.binary()
    again = pickle.loads(pickle.dumps(ref))
    assert again == ref
    assert dualray.get(again) == "a value"
    assert verbs.counts[object_id] == 3, "one is kept for whoever may read the pickle again"
    del again
    assert verbs.counts[object_id] == 2


def test_actors_are_made_and_called(verbs):
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self, amount: int) -> int:
            self.count += amount
            return self.count

    counter = dualray.remote(Counter).remote()
    counter.add.remote(2)
    assert dualray.get(counter.add.remote(3)) == 5
    passed_on = pickle.loads(pickle.dumps(counter))
    assert passed_on == counter
    assert dualray.get(passed_on.add.remote(1)) == 6


def test_the_context_is_plain(verbs):
    assert dualray.get_runtime_context().get_node_id() == "place"
    assert dualray.get_runtime_context().namespace == "here"


def test_the_users_side_of_the_seam_names_no_type_of_the_core():
    tree = ast.parse((ROOT / "dualray" / "user_verbs.py").read_text(encoding="utf-8"))
    of_core = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dualray.shared")
        for alias in node.names
    }
    assert of_core == {"ProcessKey"}, "what stands for a process, where a library keeps something for each"
