"""Dask's collections, computed on the cluster."""

from __future__ import annotations

from typing import Any

import dask
import dask.array
import dask.dataframe
import numpy as np
import pandas as pd
import pytest

import dualray as ray
from dualray.util.dask import (
    ProgressBarCallback,
    RayDaskCallback,
    disable_dask_on_ray,
    enable_dask_on_ray,
    ray_dask_get,
    ray_dask_get_sync,
)
from tests.conformance.support import get

pytestmark = pytest.mark.usefixtures("cluster")
CLUSTER = {"num_cpus": 2, "resources": {"pin": 1}}


@pytest.fixture
def dask_on_ray():
    with enable_dask_on_ray():
        yield


@dask.delayed
def add(x, y):
    return x + y


@dask.delayed
def assigned():
    return ray.get_runtime_context().get_assigned_resources()


@ray.remote
class Notes:
    def __init__(self):
        self.notes = []

    def add(self, *note):
        self.notes.append(note)

    def all(self):
        return self.notes


def test_delayed_functions_run_as_tasks():
    assert add(2, 4).compute(scheduler=ray_dask_get) == 6
    assert add(2, 4).compute(scheduler=ray_dask_get_sync) == 6
    enable_dask_on_ray()
    try:
        assert add(add(1, 2), add(3, 4)).compute() == 10
        assert dask.compute(add(1, 1), {"two": add(2, 2)}, 3) == (2, {"two": 4}, 3)
    finally:
        disable_dask_on_ray()
    assert dask.config.get("scheduler") is None

    @ray.remote
    def nested():
        return add(2, 5).compute(scheduler=ray_dask_get)

    assert get(nested.remote()) == 7


@pytest.mark.usefixtures("dask_on_ray")
def test_arrays_and_dataframes():
    numbers = np.arange(10_000.0).reshape(100, 100)
    array = dask.array.from_array(numbers, chunks=(25, 50))
    assert (array + array.T).mean().compute() == pytest.approx((numbers + numbers.T).mean())
    assert np.array_equal((array @ array).compute(), numbers @ numbers)
    frame = pd.DataFrame({"key": np.arange(100) % 7, "value": np.arange(100)})
    divided = dask.dataframe.from_pandas(frame, npartitions=5)
    assert divided.groupby("key").value.sum().compute().to_dict() == frame.groupby("key").value.sum().to_dict()
    ordered = divided.set_index("key", shuffle_method="tasks").compute()
    assert ordered.index.is_monotonic_increasing
    assert ordered.value.sum() == frame.value.sum()


@pytest.mark.usefixtures("dask_on_ray")
def test_persisted_values_stay_in_the_store():
    array = (dask.array.ones((40, 40), chunks=20) * 2).persist()
    assert {type(value) for value in array.dask.values()} == {ray.ObjectRef}
    assert ((array + 1) * array).sum().compute() == 40 * 40 * 6
    assert (array - array.T).any().compute() == np.False_
    assert array.persist().sum().compute() == 40 * 40 * 2
    frame = dask.dataframe.from_pandas(pd.DataFrame({"a": range(10)}), npartitions=3).persist()
    assert (frame.a + 1).sum().compute() == 55
    (one, two) = dask.persist(add(1, 2), add(3, 4))
    assert add(one, two).compute() == 10


@pytest.mark.usefixtures("dask_on_ray")
def test_references_in_a_graph_are_read_where_they_are_needed():
    two = ray.put(2)
    assert add(two, 1).compute() == 3
    assert dask.delayed(sum)([two, two]).compute() == 4
    value = dask.delayed(lambda given: given)({"a": [two, (two, 3)], "b": two, "c": {1: two}})
    assert value.compute() == {"a": [2, (2, 3)], "b": 2, "c": {1: 2}}
    assert add(two, 1).compute(scheduler=ray_dask_get_sync) == 3


@pytest.mark.usefixtures("dask_on_ray")
def test_a_large_value_is_put_once():
    table = dask.delayed(np.zeros(100_000))
    notes = Notes.remote()

    def note_references(key, object_refs):
        get(notes.add.remote(*[ref.hex() for ref in object_refs]))

    with RayDaskCallback(ray_pretask=note_references):
        assert dask.compute(*[dask.delayed(np.sum)(table) for _ in range(5)], optimize_graph=False) == (0,) * 5
    noted = get(notes.all.remote())
    assert len(noted) == 5
    assert len({references for references in noted if references}) == 1


@pytest.mark.usefixtures("dask_on_ray")
def test_an_error_is_the_tasks_own():
    @dask.delayed
    def fails():
        raise KeyError("no such row")

    with pytest.raises(KeyError, match="no such row") as caught:
        add(fails(), 1).compute()
    assert isinstance(caught.value, ray.exceptions.TaskError)


@pytest.mark.usefixtures("dask_on_ray")
def test_options_of_tasks():
    assert assigned().compute()["CPU"] == 1
    assert assigned().compute(ray_remote_args={"num_cpus": 2}) == {"CPU": 2}
    with dask.annotate(ray_remote_args={"num_cpus": 2, "resources": {"pin": 0.5}}):
        annotated = assigned()
        assert assigned().compute() == {"CPU": 2, "pin": 0.5}
    assert annotated.compute(optimize_graph=False) == {"CPU": 2, "pin": 0.5}
    assert annotated.compute(optimize_graph=False, ray_remote_args={"num_cpus": 1}) == {"CPU": 2, "pin": 0.5}
    with pytest.raises(ValueError, match="ray_remote_args"):
        assigned().compute(resources={"pin": 1})
    with dask.annotate(resources={"pin": 1}):
        annotated = assigned()
        with pytest.raises(ValueError, match="ray_remote_args"):
            assigned().compute()
    with pytest.raises(ValueError, match="ray_remote_args"):
        annotated.compute(optimize_graph=False)


class Noted(RayDaskCallback):
    def __init__(self, notes):
        super().__init__()
        self.notes = notes

    def _ray_postsubmit(self, task, key, deps, object_ref):
        get(self.notes.add.remote("postsubmit", len(deps)))

    def _ray_pretask(self, key, object_refs):
        get(self.notes.add.remote("pretask", len(object_refs)))
        return key

    def _ray_posttask(self, key, result, pre_state):
        get(self.notes.add.remote("posttask", result, pre_state == key))

    def _ray_postsubmit_all(self, object_refs, dsk):
        get(self.notes.add.remote("all", len(object_refs)))

    def _ray_finish(self, result):
        get(self.notes.add.remote("finish", result))


@pytest.mark.usefixtures("dask_on_ray")
def test_callbacks():
    notes = Notes.remote()
    assert not RayDaskCallback.ray_active
    with Noted(notes):
        assert RayDaskCallback.ray_active
        assert add(add(1, 2), 4).compute(optimize_graph=False) == 7
    assert not RayDaskCallback.ray_active
    found: list[Any] = get(notes.all.remote())
    assert {note for note in found if note[0] != "postsubmit"} == {
        ("pretask", 0),
        ("posttask", 3, True),
        ("pretask", 1),
        ("posttask", 7, True),
        ("all", 1),
        ("finish", (7,)),
    }
    assert [note for note in found if note[0] == "postsubmit"] == [("postsubmit", 0), ("postsubmit", 1)]
    assert add(1, 2).compute(ray_callbacks=[RayDaskCallback(ray_presubmit=lambda *_: 10)]) == 10
    with pytest.raises(TypeError, match="RayDaskCallback"):
        add(1, 2).compute(ray_callbacks=[print])


@pytest.mark.usefixtures("dask_on_ray")
def test_a_progress_bar(capsys):
    with pytest.raises(ValueError, match="with ProgressBarCallback"):
        add(1, 2).compute(_ray_enable_progress_bar=True)
    with ProgressBarCallback() as bar:
        assert add(add(1, 2), 4).compute(_ray_enable_progress_bar=True, optimize_graph=False) == 7
    assert "All tasks are completed." in capsys.readouterr().out
    assert get(bar.pb.result.remote())[0] == 2
    ray.kill(bar.pb)
