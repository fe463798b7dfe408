"""What programs and libraries write that were made for Ray, in its less public spellings."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
import time
import weakref

import numpy as np
import pytest

import dualray as ray
from dualray.actor import ActorClassInheritanceException
from dualray.exceptions import DualrayError, PlacementGroupUnschedulableError
from dualray.util.placement_group import PlacementGroup
from dualray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.conformance.support import eventually, get, in_words

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def add(a, b=0):
    return a + b


@ray.remote
def fail():
    raise KeyError("in a task")


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.value = start

    def increase(self, by=1):
        self.value += by
        return self.value

    def id(self):
        return ray.get_runtime_context().get_actor_id()


def test_a_function_is_called_with_remote_and_options():
    assert get(add._remote((1, 2))) == 3
    assert get(add._remote(args=[1], kwargs={"b": 4}, num_cpus=2, name="adding")) == 5
    assert len(ray.remote(lambda: (1, 2))._remote(num_returns=2)) == 2
    with pytest.raises(ValueError, match="num_cpu"):
        add._remote((1, 2), num_cpu=1)


@ray.remote
class Shelf:
    def __init__(self, *books):
        self.books = list(books)

    def __len__(self):
        return len(self.books)

    def __getitem__(self, index):
        return self.books[index]

    def __repr__(self):
        return "a shelf"


def test_special_methods_of_an_actors_class_are_called_by_name():
    shelf = Shelf.remote("one", "two")
    assert get([shelf.__len__.remote(), shelf.__getitem__.remote(1)]) == [2, "two"]
    assert not hasattr(shelf, "__iter__")
    assert repr(shelf).startswith("Actor(Shelf, ")


def test_ids_say_whether_they_are_of_nothing():
    counter = Counter.remote()
    group = ray.util.placement_group([{"CPU": 1}])
    assert not counter._actor_id.is_nil()
    assert not group.id.is_nil()
    assert PlacementGroup.empty().id.is_nil()
    ray.util.remove_placement_group(group)


def test_a_class_and_a_method_are_called_with_remote_and_options():
    counter = Counter._remote([5], {}, num_cpus=0)
    assert get(counter.increase._remote()) == 6
    assert get(counter.increase._remote(kwargs={"by": 2}, name="more")) == 8


def test_a_handle_has_the_id_of_its_actor():
    counter = Counter.remote()
    assert counter._actor_id.hex() == get(counter.id.remote())
    assert bytes.fromhex(counter._actor_id.hex()) == counter._actor_id.binary()
    assert counter._ray_actor_id == counter._actor_id
    assert repr(counter._actor_id) == f"ActorID({counter._actor_id.hex()})"
    assert counter._actor_id != Counter.remote()._actor_id


def test_a_reference_is_a_future_of_the_running_loop():
    @ray.remote
    class Reader:
        async def read(self, refs):
            futures = [ref.as_future() for ref in refs]
            assert all(asyncio.isfuture(future) for future in futures)
            return await asyncio.gather(*futures, return_exceptions=True)

    value, error = get(Reader.remote().read.remote([add.remote(1, 1), fail.remote()]))
    assert value == 2
    assert isinstance(error, KeyError)


def test_a_reference_is_a_future_of_the_loop_that_is_set():
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        future = add.remote(1, 1).as_future()
        assert not future.done()
        assert loop.run_until_complete(future) == 2
        with pytest.raises(KeyError):
            loop.run_until_complete(fail.remote().as_future())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    with pytest.raises(RuntimeError, match="no current event loop"):
        add.remote(1, 1).as_future()


def test_exit_actor_is_for_actors():
    with pytest.raises(TypeError, match="outside an actor"):
        ray.actor.exit_actor()

    @ray.remote
    def leave():
        ray.exit_actor()

    with pytest.raises(TypeError, match="outside an actor"):
        get(leave.remote())


def test_a_placement_group_is_made_by_function_and_module():
    import dualray.util.placement_group as of_module
    from dualray.util import placement_group
    from dualray.util.placement_group import placement_group as of_file

    for make in (placement_group, of_module, of_file, ray.util.placement_group):
        group = make([{"CPU": 1}])
        assert get(group.ready()) == group
        assert group.wait(timeout_seconds=10) and group.wait(10)
        assert not group.is_empty
        ray.util.remove_placement_group(group)
    assert group.id.binary() == bytes.fromhex(group.id.hex())
    nowhere = type(group).empty()
    assert nowhere.is_empty
    assert get(add.options(placement_group=nowhere).remote(1)) == 1


def test_what_rays_libraries_say_of_a_node():
    node = ray.get_runtime_context().get_node_id()

    @ray.remote
    def where():
        return ray.get_runtime_context().get_node_id()

    for strategy in (
        NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True),
        NodeAffinitySchedulingStrategy(node_id=node, soft=False, _fail_on_unavailable=True),
    ):
        assert get(where.options(scheduling_strategy=strategy).remote()) == node
    with pytest.raises(ValueError, match="_spill_on_unavailable"):
        NodeAffinitySchedulingStrategy(node, soft=False, _spill_on_unavailable=True)
    with pytest.raises(ValueError, match="_fail_on_unavailable"):
        NodeAffinitySchedulingStrategy(node, soft=True, _fail_on_unavailable=True)


# ---- GPUs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"num_cpus": 1}, {"num_gpus": 0}], ids=["nothing said", "none"])
def test_who_holds_no_gpu_sees_none(options):
    @ray.remote(**options)
    def seen():
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    assert get([seen.remote() for _ in range(3)]) == ["", "", ""]
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before


# ---- What a function refers to -------------------------------------------------------------------------------------


def writer(length):
    """A function that came by value, with an array that it may write."""
    array = np.zeros(length)

    def write():
        array[0] += 1
        return float(array[0]), array.flags.writeable

    return write, array


@pytest.mark.parametrize("length", [4, 200_000], ids=["small", "large"])
def test_an_array_that_a_function_refers_to_is_each_workers_own(length):
    write, array = writer(length)
    results = get([ray.remote(write).remote() for _ in range(3)])
    assert all(result[0] >= 1 and result[1] for result in results)
    assert array[0] == 0


def test_an_array_of_an_actor_class_can_be_written():
    table = np.arange(5.0)

    @ray.remote
    class Keeper:
        shared = np.zeros(3)

        def write(self):
            table[0] += 7
            self.shared[1] = 3
            return table[0], self.shared[1]

    assert get(Keeper.remote().write.remote()) == (7, 3)
    assert table[0] == 0


# ---- Clocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.2, 0.05, 0.25, 0.0123])
def test_a_wait_is_never_shorter_than_asked(seconds):
    @ray.remote
    def waits(ways):
        lengths = []
        late = slow.remote()
        last = time.time()
        for way in range(ways):
            if way % 3 == 0:
                time.sleep(seconds)
            elif way % 3 == 1:
                threading.Event().wait(seconds)
            else:
                ray.wait([late], timeout=seconds)
            now = time.time()
            lengths.append(now - last)
            last = now
        ray.cancel(late)
        return lengths

    @ray.remote
    def slow():
        time.sleep(30)

    assert min(ray.get(waits.remote(9), timeout=60)) >= seconds


def test_modules_stand_where_ray_has_them():
    from dualray import cloudpickle
    from dualray.dag.input_node import InputNode
    from dualray.dag.output_node import MultiOutputNode

    assert cloudpickle.loads(cloudpickle.dumps(lambda: 3))() == 3
    assert ray.cloudpickle is cloudpickle
    assert ray.dag.InputNode is InputNode
    assert ray.dag.MultiOutputNode is MultiOutputNode


# ---- Generators, and classes that are actors -------------------------------------------------------------------------


def test_a_generator_with_one_result_gives_its_value():
    @ray.remote(num_returns=1)
    def one(value):
        yield value

    @ray.remote
    class Maker:
        def items(self, count):
            yield from range(count)

    assert get(one.remote(3)) == 3
    assert get(one.remote(np.ones(1 << 18)))[0] == 1
    maker = Maker.remote()
    assert get(maker.items.options(num_returns=1).remote(1)) == 0
    assert [get(ref) for ref in maker.items.options(num_returns=None).remote(2)] == [0, 1]
    with pytest.raises(ValueError, match=in_words("yielded 0 values")):
        get(maker.items.options(num_returns=1).remote(0))


def test_what_yields_nothing_is_no_generator():
    with pytest.raises(ValueError, match="can only be used with generator functions"):
        ray.remote(num_returns="dynamic")(lambda: [1])


def test_no_class_inherits_from_an_actor_class():
    @ray.remote
    class Base:
        pass

    with pytest.raises(ActorClassInheritanceException, match="Base is an actor class"):

        class Derived(Base):
            pass


def test_a_reference_knows_its_task():
    @ray.remote
    def own():
        return ray.get_runtime_context().get_task_id()

    ref = own.remote()
    assert ref.task_id().hex() == get(ref)
    assert not ref.is_nil()


def test_an_order_that_concurrency_cannot_keep():
    class Plain:
        def f(self):
            return 1

    class Coroutines:
        async def f(self):
            return 1

    for cls, options in ((Coroutines, {}), (Plain, {"max_concurrency": 2})):
        for made in (
            ray.remote(**options, allow_out_of_order_execution=False)(cls),
            ray.remote(cls).options(**options, allow_out_of_order_execution=False),
        ):
            with pytest.raises(ValueError, match="allow_out_of_order_execution=False is only for actors that run one"):
                made.remote()
    for order in (True, False, None):
        assert get(ray.remote(Plain).options(allow_out_of_order_execution=order).remote().f.remote()) == 1


def test_a_function_that_captures_too_much_is_refused():
    large = bytearray(96 << 20)

    @ray.remote
    def f():
        return len(large)

    @ray.remote
    class Actor:
        def f(self):
            return len(large)

    of_function = r"The remote function .*f is too large: with its captured values it has 9\d MiB"
    with pytest.raises(ValueError, match=in_words(of_function, "The remote function .*f is too large")):
        f.remote()
    with pytest.raises(ValueError, match=in_words(r"The actor Actor is too large.*with put", "Actor is too large")):
        Actor.remote()


@pytest.mark.parametrize("name", [None, "", "   "])
def test_get_actor_needs_a_name(name):
    with pytest.raises(ValueError, match="name="):
        ray.get_actor(name)


def test_an_actor_that_exits_in_its_constructor_never_was():
    class Never:
        def __init__(self):
            ray.actor.exit_actor()

        def f(self):
            return 1

    class NeverAsync(Never):
        async def f(self):
            return 1

    for cls in (Never, NeverAsync):
        with pytest.raises(
            ray.exceptions.ActorDiedError, match=in_words(r"exit_actor\(\) was called in the constructor")
        ):
            get(ray.remote(cls).remote().f.remote())
    assert get(add.remote(1)) == 1


def test_an_actor_that_ends_by_its_own_will_shuts_itself_down(tmp_path):
    @ray.remote
    class Keeper:
        def __init__(self, file, fails=False):
            self.file, self.fails = file, fails

        def __ray_shutdown__(self):
            self.file.write_text("shut down")
            if self.fails:
                raise ValueError("on the way out")

        def leave(self):
            ray.actor.exit_actor()

    @ray.remote
    class Loop:
        def __init__(self, file):
            self.file = file

        def __ray_shutdown__(self):
            self.file.write_text("shut down")

        async def leave(self):
            ray.actor.exit_actor()

    made = [
        Keeper.remote(tmp_path / "0"),
        Keeper.remote(tmp_path / "1", fails=True),
        Loop.remote(tmp_path / "2"),
        Keeper.remote(tmp_path / "3"),
    ]
    for number, actor in enumerate(made):
        with pytest.raises(ray.exceptions.RayActorError):
            get(actor.leave.remote() if number < 3 else actor.__ray_terminate__.remote())
        assert (tmp_path / str(number)).read_text() == "shut down"


def test_a_task_leaves_the_group_that_captures_it():
    group = ray.util.placement_group([{"CPU": 1}])

    @ray.remote(num_cpus=0)
    def here():
        return ray.util.get_current_placement_group()

    @ray.remote(num_cpus=0)
    def ask():
        return get([here.remote(), here.options(placement_group=None).remote()])

    captured = here.options(placement_group=group, placement_group_capture_child_tasks=True)
    assert get(captured.remote()) == group
    strategy = {"placement_group": group, "placement_group_capture_child_tasks": True}
    assert get(ask.options(**strategy).remote()) == [group, None]
    with pytest.raises(ValueError, match="bundle index 3 is invalid"):
        here.options(placement_group=group, placement_group_bundle_index=3).remote()
    ray.util.remove_placement_group(group)


def reverses(submit):
    def called(args, kwargs):
        return submit(args[::-1], {"c": 5}), kwargs

    return called


def triple(a, b, c=0):
    return a, b, c


triple.__ray_invocation_decorator__ = reverses
triple = ray.remote(triple)


def doubles(submit):
    return lambda args, kwargs: (submit([args[0], args[0]], {}), kwargs)


def adds_both(method):
    def added(self, a, b):
        return method(self, a + b)

    added.__ray_invocation_decorator__ = doubles
    return added


@ray.remote
class Decorated:
    @adds_both
    def plus_one(self, x):
        return x + 1


@ray.remote
def call_decorated(handle):
    ref, kwargs = handle.plus_one.remote(5, more=1)
    return ray.get(ref), kwargs


def test_a_function_may_say_how_it_is_called():
    for function in (triple, triple.options(name="named")):
        ref, kwargs = function.remote(1, 2, c=4)
        assert (get(ref), kwargs) == ((2, 1, 5), {"c": 4})


def test_a_method_may_say_how_it_is_called():
    actor = Decorated.remote()
    for method in (actor.plus_one, actor.plus_one.options(name="named")):
        ref, kwargs = method.remote(3, keyword=3)
        assert (get(ref), kwargs) == (7, {"keyword": 3})
    assert get(call_decorated.remote(actor)) == (11, {"more": 1})


def test_a_reference_can_be_made_of_an_id_and_compared():
    ref = ray.put(1)
    same = ray.ObjectRef(ref.binary())
    assert same == ref
    assert {ref: "found"}[same] == "found"
    assert ray.ObjectRef.from_hex(ref.hex()) == ray.ObjectRef.from_binary(ref.binary()) == same
    assert pickle.loads(pickle.dumps(same)) == ref
    assert get(add.remote([], [same])) == [ref], "it passes inside of an argument"
    assert ray.ObjectRef.nil().is_nil()
    assert not ray.ObjectRef.from_random().is_nil()
    assert ray.ObjectRef.from_random() != ray.ObjectRef.from_random()
    assert len(ray.ObjectRef.from_random().binary()) == ray.ObjectRef.size()
    assert ray.ObjectRef(b"x" * 28).binary() == b"x" * 28
    assert get(same) == 1
    assert get(add.remote(same, 1)) == 2, "whoever holds the object can read it by its id"
    assert ray.wait([same])[0] == [ref]
    del ref
    assert get(same) == 1, "it keeps the value, as every reference does"
    for use in (ray.get, add.remote, lambda ref: ray.wait([ref])):
        with pytest.raises(DualrayError, match="created from an id alone"):
            use(ray.ObjectRef.from_random())


def test_a_function_is_called_when_a_value_is_there():
    came: list[object] = []
    ref, failed = add.remote(1, 2), fail.remote()
    ref._on_completed(came.append)
    failed._on_completed(came.append)
    with pytest.raises(KeyError):
        get(failed)
    while len(came) < 2:
        time.sleep(0.01)
    assert 3 in came
    assert any(isinstance(each, KeyError) for each in came)


def test_a_function_that_raises_when_a_value_is_there_is_not_kept(capfd):
    def called(value):
        raise KeyError(f"{value} is not welcome")

    ref = add.remote(1, 2)
    ref._on_completed(called)
    only = weakref.ref(called)
    del called
    eventually(lambda: only() is None, "nothing keeps the function")
    assert "3 is not welcome" in capfd.readouterr().err


def test_more_than_one_accelerator_is_a_whole_number_at_the_call():
    @ray.remote(num_gpus=1.5)
    def parts():
        pass

    @ray.remote(resources={"NPU": 2.5})
    class Parts:
        pass

    with pytest.raises(ValueError, match=r"num_gpus=1\.5: an amount above 1 must be a whole number"):
        parts.remote()
    with pytest.raises(ValueError, match=r"NPU=2\.5: an amount above 1 must be a whole number of NPUs"):
        Parts.remote()
    with pytest.raises(ValueError, match="must be whole numbers"):
        add.options(num_gpus=2.5).remote(1)


def test_a_class_says_what_the_state_calls_it():
    assert Counter.__ray_metadata__.class_name == "Counter"
    assert Counter.options(num_cpus=1).__ray_actor_class__ is Counter.__ray_metadata__.modified_class
    assert Counter.__ray_metadata__.modified_class().value == 0


@pytest.mark.parametrize("wrong", [b"", b"short", b"x" * 32, "text" * 5])
def test_an_id_that_is_none_makes_no_reference(wrong):
    with pytest.raises((ValueError, TypeError), match=r"needs to have length|takes the bytes"):
        ray.ObjectRef(wrong)


def test_methods_may_have_the_names_that_handles_use_themselves():
    @ray.remote
    class Shy:
        def check(self):
            return "check"

        def reduced(self):
            return "reduced"

        def options(self):
            return "options"

    shy = Shy.remote()
    names = ["check", "reduced", "options"]
    assert get([getattr(shy, name).remote() for name in names]) == names
    assert get(add.remote([], [shy])) == [shy]
    ray.kill(shy)


def test_older_properties_of_the_context_say_which_functions_to_call():
    context = ray.get_runtime_context()
    for name in ("node_id", "job_id", "task_id", "actor_id"):
        with pytest.warns(DeprecationWarning, match=rf"Use get_{name}\(\) instead"):
            assert getattr(context, name) == getattr(context, f"get_{name}")()


def test_memory_of_stores_is_no_resource_to_ask_for():
    with pytest.warns(DeprecationWarning, match="Setting 'object_store_memory' for actors is deprecated"):

        @ray.remote(object_store_memory=1)
        class Kept:
            pass

    assert get(Kept.remote().__ray_ready__.remote())
    with pytest.warns(DeprecationWarning, match="Setting 'object_store_memory' for bundles is deprecated"):
        ray.util.remove_placement_group(_group_of_store_memory())
    with pytest.raises(ValueError, match="the resource name 'bundle' is reserved"):
        ray.util.placement_group([{"bundle": 1}])


def _group_of_store_memory():
    try:
        return ray.util.placement_group([{"object_store_memory": 1}])
    except PlacementGroupUnschedulableError:  # a closed cluster says at once that no node has it
        return PlacementGroup.empty()


def test_a_generator_of_references_has_no_two_way_traffic():
    @ray.remote
    def items():
        yield 1

    generator = items.remote()
    for call in (lambda: generator.send(1), lambda: generator.throw(ValueError()), generator.close):
        with pytest.raises(NotImplementedError):
            call()
    assert get(next(generator)) == 1
