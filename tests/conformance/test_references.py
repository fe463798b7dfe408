from __future__ import annotations

import copy
import gc
import io
import os
import pickle
import time

import numpy as np
import pytest

import dualray as ray
from dualray import cloudpickle
from dualray.core_verbs import PICKLED_BY_ANYBODY
from dualray.exceptions import ActorDiedError, ObjectLostError, OwnerDiedError
from tests.conformance.support import MIB, eventually, get, in_words

CLUSTER = {"object_store_memory": 64 * MIB, "limits": {"store_wait_ns": 5_000_000_000}}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def echo(value):
    return value


@ray.remote
def read(refs):
    return [ray.get(ref, timeout=10) for ref in refs]


@ray.remote
def put_both():
    return [ray.put("small"), ray.put(np.full(MIB, 3, dtype=np.uint8))]


@ray.remote(num_cpus=0)
class Keeper:
    def keep(self, refs):
        self.refs = refs

    def read(self):
        return [ray.get(ref, timeout=10) for ref in self.refs]

    def give(self):
        return self.refs

    def drop(self):
        self.refs = None

    def put(self, value):
        self.own = ray.put(value)
        return [self.own]

    def die(self):
        os._exit(1)


@ray.remote
def mebibytes(count, fill=0):
    return np.full(count * MIB, fill, dtype=np.uint8)


# ---- What a reference is -------------------------------------------------------------------------------------------


def test_a_reference_has_an_id_and_compares_by_it():
    ref = ray.put(1)
    assert len(ref.hex()) == 40
    assert ref.hex() == ref.binary().hex()
    assert repr(ref) == f"ObjectRef({ref.hex()})"
    [same] = get(ray.put([ref]))
    assert same == ref
    assert {ref: "found"}[same] == "found"
    assert ref != ray.put(1)


def test_copies_of_a_reference_are_the_reference():
    ref = ray.put(1)
    assert copy.copy(ref) == copy.deepcopy(ref) == ref
    assert get(copy.deepcopy([ref])[0]) == 1
    other = copy.copy(ref)
    assert other is not ref
    del ref
    assert get(other) == 1


def test_a_reference_is_not_its_value():
    with pytest.raises(TypeError, match=r"use dualray\.get\(ref\)"):
        list(ray.put([1]))


# ---- References inside values --------------------------------------------------------------------------------------


def test_references_inside_results():
    small, large = get(put_both.remote())
    assert get(small) == "small"
    assert (get(large) == 3).all()


def test_references_may_be_nested_deeply():
    ref = ray.put("bottom")
    for _ in range(5):
        ref = ray.put({"inner": [ref]})
    for _ in range(5):
        ref = get(ref)["inner"][0]
    assert get(ref) == "bottom"


def test_a_reference_goes_through_several_processes():
    ref = echo.remote("value")
    box = [ref]
    for _ in range(4):
        box = get(echo.remote(box))
    assert box == [ref]
    assert get(box[0]) == "value"


def test_a_reference_whose_value_is_not_there_yet_can_be_passed_on(gate):
    @ray.remote(num_cpus=0)
    def late():
        gate.wait()
        return "late"

    ref = read.remote([late.remote()])
    time.sleep(0.05)
    gate.open()
    assert get(ref) == ["late"]


# ---- Kept alive ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, MIB], ids=["inline", "in the store"])
def test_an_argument_is_there_though_its_reference_is_gone(size, gate):
    @ray.remote(num_cpus=0)
    def later(refs, direct):
        gate.wait()
        return len(ray.get(refs[0], timeout=10)) + len(direct)

    nested, direct = ray.put(b"a" * size), ray.put(b"b" * size)
    result = later.remote([nested], direct)
    del nested, direct
    time.sleep(0.05)
    gate.open()
    assert get(result) == 2 * size


@pytest.mark.parametrize("make", [lambda size: ray.put(b"x" * size), lambda size: echo.remote(b"x" * size)])
@pytest.mark.parametrize("size", [10, MIB], ids=["inline", "in the store"])
def test_an_actor_keeps_what_it_borrows(make, size):
    keeper = Keeper.remote()
    ref = make(size)
    get(keeper.keep.remote([ref]))
    del ref
    time.sleep(0.05)
    for _ in range(2):
        assert get(keeper.read.remote()) == [b"x" * size]


def test_what_an_actor_gives_back_is_alive():
    keeper = Keeper.remote()
    get(keeper.keep.remote([ray.put("first"), echo.remote(b"y" * MIB)]))
    refs = get(keeper.give.remote())
    get(keeper.drop.remote())
    time.sleep(0.05)
    assert get(refs) == ["first", b"y" * MIB]


def test_a_container_keeps_what_it_refers_to():
    box = ray.put([ray.put("inner"), echo.remote(b"z" * MIB)])
    time.sleep(0.05)
    assert get(get(box)) == ["inner", b"z" * MIB]


def test_a_result_keeps_what_it_refers_to():
    box = put_both.remote()
    ray.wait([box], timeout=10)
    time.sleep(0.05)
    small, large = get(box)
    del box
    assert get(small) == "small"
    assert (get(large) == 3).all()


def test_a_task_gives_its_argument_reference_back():
    @ray.remote
    def pick(refs):
        return refs[1]

    refs = [ray.put(index) for index in range(3)]
    picked = get(pick.remote(refs))
    del refs
    time.sleep(0.05)
    assert get(picked) == 1


# ---- Let go --------------------------------------------------------------------------------------------------------


def test_the_space_of_dropped_objects_comes_back():
    for fill in range(12):  # 12 times 20 MiB go through 64 MiB
        assert get(ray.put(np.full(20 * MIB, fill, dtype=np.uint8)))[0] == fill


def test_the_space_of_dropped_results_comes_back():
    for fill in range(12):
        assert get(mebibytes.remote(20, fill))[-1] == fill


def test_the_space_of_dropped_arguments_comes_back():
    for fill in range(12):
        assert get(echo.remote(np.full(20 * MIB, fill, dtype=np.uint8)))[-1] == fill


def test_the_space_of_what_a_borrower_dropped_comes_back():
    keeper = Keeper.remote()
    for fill in range(8):
        get(keeper.keep.remote([ray.put(np.full(30 * MIB, fill, dtype=np.uint8))]))
        [array] = get(keeper.read.remote())
        assert array[0] == fill
        del array


def test_the_space_of_what_is_inside_a_dropped_container_comes_back():
    for fill in range(8):
        box = ray.put([ray.put(np.full(30 * MIB, fill, dtype=np.uint8))])
        assert get(get(box)[0])[0] == fill


def test_a_view_keeps_its_space_after_the_reference_is_gone():
    array = get(ray.put(np.full(20 * MIB, 9, dtype=np.uint8)))
    part = array[::1024]
    del array
    for fill in range(6):
        assert get(ray.put(np.full(20 * MIB, fill, dtype=np.uint8)))[0] == fill
    assert (part == 9).all()


# ---- Owners --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, MIB], ids=["inline", "in the store"])
def test_an_object_is_lost_with_the_process_that_owns_it(size):
    keeper = Keeper.remote()
    [ref] = get(keeper.put.remote(b"x" * size))
    with pytest.raises(ActorDiedError):
        get(keeper.die.remote())

    def is_lost():
        try:
            ray.get(ref, timeout=10)
        except OwnerDiedError:
            return True
        return False

    eventually(is_lost, "the owner's death is known")
    with pytest.raises(ObjectLostError, match=in_words("which owned it, died", "owner has exited")):
        get(ref)


def test_what_a_task_has_put_outlives_an_actor_that_comes_after_it():
    held = get([puts_large.remote(number) for number in range(4)])
    for _ in range(4):
        actor = Keeper.remote()
        assert get(actor.keep.remote([])) is None
        ray.kill(actor)
        with pytest.raises(ActorDiedError):
            get(actor.keep.remote([]))
    assert [get(ref[0])[0] for ref in held] == list(range(4))


@ray.remote
def puts_large(number):
    return [ray.put(np.full(MIB, number, np.uint8))]


def test_a_value_that_was_read_outlives_its_owner():
    keeper = Keeper.remote()
    [ref] = get(keeper.put.remote(np.full(MIB, 5, dtype=np.uint8)))
    array = get(ref)
    ray.kill(keeper)
    time.sleep(0.2)
    assert (array == 5).all()


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_an_object_whose_reference_the_program_pickles_is_kept(pickler):
    ref = ray.put([1, 2])
    pickled = pickler.dumps(ref)
    del ref
    gc.collect()
    assert get(pickle.loads(pickled)) == [1, 2]


@ray.remote(num_cpus=0)
class Kept:
    def value(self):
        return 3


def test_an_actor_whose_handle_cloudpickle_pickles_is_kept_and_by_pickle_it_is_not():
    handle = Kept.remote()
    assert get(handle.value.remote()) == 3
    pickled = cloudpickle.dumps([handle])
    del handle
    gc.collect()
    time.sleep(0.5)
    [again] = cloudpickle.loads(pickled)
    assert get(again.value.remote()) == 3
    with io.BytesIO() as file:
        cloudpickle.dump(again, file)
        assert cloudpickle.loads(file.getvalue()) == again

    handle = Kept.remote()
    assert get(handle.value.remote()) == 3
    pickled = pickle.dumps(handle)
    del handle
    gc.collect()
    with pytest.raises(ActorDiedError):
        eventually_fails(lambda: get(pickle.loads(pickled).value.remote()))


def eventually_fails(call):
    for _ in range(100):
        call()
        time.sleep(0.1)


@ray.remote
def pickled_by_hand():
    return pickle.dumps(ray.put([1, 2]))


def test_an_object_whose_reference_a_task_pickles_is_kept():
    assert get(pickle.loads(get(pickled_by_hand.remote()))) == [1, 2]


def test_a_variable_forbids_that_references_are_pickled_by_hand():
    forbidding = pickled_by_hand.options(runtime_env={"env_vars": {PICKLED_BY_ANYBODY: "0"}})
    with pytest.raises(ray.exceptions.OufOfBandObjectRefSerializationException, match="Pass the reference to a task"):
        get(forbidding.remote())


def test_the_variable_forbids_that_a_function_holds_a_reference(cluster):
    if cluster.mode == "ray":
        pytest.skip("Ray reads the variable when it starts")

    @ray.remote(runtime_env={"env_vars": {PICKLED_BY_ANYBODY: "0"}})
    def submits():
        held = ray.put(1)
        with pytest.raises(ray.exceptions.OufOfBandObjectRefSerializationException, match="pass the reference"):
            ray.remote(lambda: held).remote()
        return ray.get(ray.remote(lambda ref: ref).remote(held))

    assert get(submits.remote()) == 1
