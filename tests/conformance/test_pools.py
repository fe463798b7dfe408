from __future__ import annotations

import multiprocessing
import time

import joblib
import pytest

import dualray as ray
from dualray.exceptions import ActorDiedError
from dualray.util import ActorPool
from dualray.util.joblib import register_dualray
from dualray.util.multiprocessing import Pool
from tests.conformance.support import eventually, get

CLUSTER = {"num_cpus": 4}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote(num_cpus=0)
class Doubler:
    def double(self, value):
        return 2 * value

    def after(self, gate, value):
        gate.wait()
        return value

    def fail(self, value):
        raise ValueError(value)


def double(actor, value):
    return actor.double.remote(value)


@pytest.fixture
def pool():
    return ActorPool([Doubler.remote() for _ in range(2)])


# ---- ActorPool -----------------------------------------------------------------------------------------------------


def test_a_pool_maps_in_order(pool):
    assert list(pool.map(double, range(7))) == [0, 2, 4, 6, 8, 10, 12]
    assert sorted(pool.map_unordered(double, range(7))) == [0, 2, 4, 6, 8, 10, 12]
    assert list(pool.map(double, [])) == []


def test_submitted_calls_are_taken_in_order(pool):
    for value in range(5):
        pool.submit(double, value)
    assert not pool.has_free()
    assert [pool.get_next(timeout=20) for _ in range(5)] == [0, 2, 4, 6, 8]
    assert not pool.has_next()
    assert pool.has_free()
    with pytest.raises(StopIteration):
        pool.get_next()
    with pytest.raises(StopIteration):
        pool.get_next_unordered()


def test_the_first_that_ends_is_the_first_without_order(pool, gate):
    pool.submit(lambda actor, value: actor.after.remote(gate, value), "late")
    pool.submit(double, 2)
    assert pool.get_next_unordered(timeout=20) == 4
    gate.open()
    assert pool.get_next_unordered(timeout=20) == "late"


def test_a_result_that_is_late_can_be_asked_for_again_or_be_ignored(pool, gate):
    pool.submit(lambda actor, value: actor.after.remote(gate, value), "late")
    pool.submit(double, 1)
    with pytest.raises(TimeoutError):
        pool.get_next(timeout=0.05)
    with pytest.raises(TimeoutError, match=r"ignores|drops"):
        pool.get_next(timeout=0.05, ignore_if_timedout=True)
    assert pool.get_next(timeout=20) == 2
    assert not pool.has_next()
    gate.open()


def test_an_error_does_not_cost_the_pool_its_actor(pool):
    for _ in range(3):
        pool.submit(lambda actor, value: actor.fail.remote(value), "bad")
        with pytest.raises(ValueError, match="bad"):
            pool.get_next(timeout=20)
    assert list(pool.map(double, range(4))) == [0, 2, 4, 6]


def test_a_dead_actors_calls_fail_and_the_pool_goes_on():
    mortal = Doubler.remote()
    get(mortal.double.remote(1))
    pool = ActorPool([Doubler.remote(), mortal])
    ray.kill(mortal)
    for number in range(3):
        pool.submit(double, number)
    with pytest.raises(ActorDiedError):
        pool.get_next(timeout=20)
    assert mortal not in pool._idle_actors
    assert [pool.get_next_unordered(timeout=20) for _ in range(2)] == [2, 4]
    assert list(pool.map(double, range(3))) == [0, 2, 4]
    assert len(pool._idle_actors) == 1


def test_what_libraries_read_of_a_pool_is_as_in_ray():
    first, second = Doubler.remote(), Doubler.remote()
    pool = ActorPool([first, second])
    assert pool._idle_actors == [first, second]
    for number in range(3):
        pool.submit(double, number)
    assert [(number, actor) for number, actor in pool._future_to_actor.values()] == [(0, second), (1, first)]
    assert list(pool._index_to_future.values()) == list(pool._future_to_actor)
    assert pool._pending_submits == [(double, 2)] and pool._next_task_index == 2 and pool._idle_actors == []
    assert [pool.get_next(timeout=20) for _ in range(3)] == [0, 2, 4]
    assert pool._next_return_index == 3 and pool._future_to_actor == {} and len(pool._idle_actors) == 2


def test_actors_can_be_added_and_taken_out(pool):
    with pytest.raises(ValueError, match="already in the pool"):
        pool.push(pool._idle_actors[0])
    with pytest.raises(TypeError, match="actor handles"):
        pool.push("no actor")
    first, second = pool.pop_idle(), pool.pop_idle()
    assert pool.pop_idle() is None
    pool.submit(double, 3)
    assert not pool.has_next()
    pool.push(first)
    assert pool.get_next(timeout=20) == 6
    pool.push(second)


# ---- multiprocessing.Pool ------------------------------------------------------------------------------------------


def square(value):
    return value * value


def power(base, exponent):
    return base**exponent


def fail(value):
    raise ValueError(f"no {value}")


@pytest.fixture(scope="module")
def processes(module_cluster):
    made = Pool(2, ray_remote_args={"num_cpus": 0})
    yield made
    made.terminate()
    made.join()


def test_a_pool_of_processes_applies_and_maps(processes):
    assert processes.apply(power, (2,), {"exponent": 5}) == 32
    assert processes.map(square, range(10)) == [value * value for value in range(10)]
    assert processes.map(square, range(10), chunksize=3) == [value * value for value in range(10)]
    assert processes.map(square, []) == []
    assert processes.starmap(power, [(2, 3), (3, 2)]) == [8, 9]
    assert processes.map_async(square, [1, 2]).get(timeout=20) == [1, 4]
    assert processes.starmap_async(power, [(1, 2)]).get(timeout=20) == [1]


def test_imap_is_lazy_and_in_order(processes):
    taken = []

    def values():
        for value in range(50):
            taken.append(value)
            yield value

    results = processes.imap(square, values())
    assert len(taken) < 50
    assert list(results) == [value * value for value in range(50)]
    assert sorted(processes.imap_unordered(square, range(10), chunksize=3)) == [value * value for value in range(10)]


def test_imaps_next_takes_a_timeout(processes, gate):
    results = processes.imap(lambda value: gate.wait() or value, [1])
    with pytest.raises(multiprocessing.TimeoutError):
        results.next(timeout=0.05)
    gate.open()
    assert results.next(timeout=20) == 1
    with pytest.raises(StopIteration):
        results.next()


def test_what_a_call_raises_is_raised_by_get(processes):
    result = processes.apply_async(fail, (1,))
    with pytest.raises(ValueError, match="no 1"):
        result.get(timeout=20)
    assert not result.successful()
    with pytest.raises(ValueError, match="no 0"):
        processes.map(fail, range(3))
    results = processes.imap(lambda value: 1 / value, [1, 0, 2])
    assert results.next() == 1
    with pytest.raises(ZeroDivisionError):
        results.next()
    assert results.next() == 0.5


def test_a_result_that_is_late_is_a_timeout(processes, gate):
    result = processes.apply_async(gate.wait)
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready"):
        result.successful()
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0.05)
    gate.open()
    result.wait(20)
    assert result.ready()
    assert result.successful()


def test_callbacks_are_called_with_the_result_or_the_error(processes):
    results, errors = [], []
    processes.apply_async(square, (3,), callback=results.append, error_callback=errors.append)
    processes.map_async(square, [1, 2], callback=results.append)
    processes.apply_async(fail, (3,), callback=results.append, error_callback=errors.append)
    eventually(lambda: len(results) == 2 and len(errors) == 1, "each has had its callback")
    assert sorted(map(str, results)) == ["9", "[1, 4]"]
    assert isinstance(errors[0], ValueError)


def test_each_process_is_initialized_once(tally):
    with Pool(2, initializer=tally.add, initargs=("ready",), ray_remote_args={"num_cpus": 0}) as pool:
        assert pool.map(square, range(8)) == [value * value for value in range(8)]
        assert tally.notes == ["ready", "ready"]


def test_processes_are_replaced_after_so_many_chunks(tally):
    with Pool(1, tally.add, ("ready",), maxtasksperchild=2, ray_remote_args={"num_cpus": 0}) as pool:
        assert pool.map(square, range(5), chunksize=1) == [0, 1, 4, 9, 16]
        assert tally.count == 3


def test_a_closed_pool_finishes_its_work_and_takes_no_more(gate):
    pool = Pool(1, ray_remote_args={"num_cpus": 0})
    result = pool.apply_async(lambda: gate.wait() or 7)
    with pytest.raises(ValueError, match="Pool is still running"):
        pool.join()
    pool.close()
    with pytest.raises(ValueError, match="Pool not running"):
        pool.apply_async(square, (2,))
    gate.open()
    pool.join()
    assert result.get() == 7


def test_a_pool_that_is_terminated_leaves_nobody_waiting(gate):
    with Pool(1, ray_remote_args={"num_cpus": 0}) as pool:
        result = pool.apply_async(gate.wait)
    with pytest.raises(ActorDiedError):
        result.get(timeout=20)
    gate.open()
    pool.join()


def test_bad_numbers_are_refused():
    with pytest.raises(ValueError, match="processes=0: Processes in the pool must be >0"):
        Pool(0)
    with pytest.raises(TypeError, match="processes='2' must be an int"):
        Pool("2")
    with pytest.raises(TypeError, match="initializer"):
        Pool(1, initializer=3)
    with pytest.raises(ValueError, match="maxtasksperchild"):
        Pool(1, maxtasksperchild=0)


def test_more_processes_than_cpus_are_refused_at_once(cluster):
    cpus = int(cluster.cpus * cluster.nodes)
    with pytest.raises(ValueError, match=rf"{cpus + 1} processes .* only {cpus} CPUs in it: use Pool\({cpus}\)"):
        Pool(cpus + 1)


def test_a_pool_holds_no_cpus(cluster):
    with Pool() as pool:
        assert ray.available_resources()["CPU"] == cluster.cpus * cluster.nodes
        assert get(ray.remote(square).remote(3)) == 9
        nodes = set(pool.map(lambda _: ray.get_runtime_context().get_node_id(), range(12), chunksize=1))
        assert len(nodes) == cluster.nodes
    with Pool(1, ray_remote_args={"num_cpus": 1}):
        assert ray.available_resources()["CPU"] == cluster.cpus * cluster.nodes - 1


def refuse():
    raise RuntimeError("not today")


def test_an_initializer_that_raises_is_known_at_once():
    with pytest.raises(ActorDiedError, match="not today"):
        Pool(2, initializer=refuse)


def test_what_an_initializer_sets_is_there_for_the_functions_beside_it():
    code = """if True:
        SETTING = None
        def set_up(value):
            global SETTING
            SETTING = value
        def read(_):
            return SETTING
    """
    script = {"__name__": "__main__"}
    exec(code, script)
    with Pool(2, initializer=script["set_up"], initargs=[7]) as pool:
        assert pool.map(script["read"], range(4), chunksize=1) == [7, 7, 7, 7]
    assert script["SETTING"] is None


def test_a_pool_can_be_given_to_a_task(processes):
    @ray.remote
    def squares(pool):
        return pool.map(square, [1, 2, 3])

    assert get(squares.remote(processes)) == [1, 4, 9]
    assert processes.map(square, [4]) == [16]


def test_joinable_queues_are_the_standard_librarys():
    from dualray.util.multiprocessing import JoinableQueue

    assert JoinableQueue == multiprocessing.JoinableQueue


def test_arguments_may_be_left_out_as_in_ray(processes):
    assert processes.apply(square, (2,), None) == 4
    assert processes.apply(int, None) == 0
    assert processes.apply_async(int).get(timeout=20) == 0
    assert list(processes.imap(square, iter([1, 2]), chunksize=None)) == [1, 4]
    assert list(processes.imap_unordered(square, [], chunksize=None)) == []
    with Pool(1, initializer=int, initargs=None) as pool:
        assert pool.map(square, [1]) == [1]


# ---- joblib --------------------------------------------------------------------------------------------------------


def test_joblib_runs_on_the_cluster(cluster, tally):
    def square_here(value):
        tally.add(ray.get_runtime_context().get_worker_id())
        return value * value

    register_dualray()
    with joblib.parallel_backend("dualray"):
        found = joblib.Parallel(n_jobs=4)(joblib.delayed(square_here)(value) for value in range(8))
        assert joblib.effective_n_jobs(-1) == cluster.cpus * cluster.nodes
    assert found == [value * value for value in range(8)]
    assert len(tally.notes) == 8
    assert ray.get_runtime_context().get_worker_id() not in tally.notes


def test_joblib_raises_what_a_call_raises():
    register_dualray()
    with joblib.parallel_backend("dualray", n_jobs=2), pytest.raises(ValueError, match=r"no \d"):
        joblib.Parallel()(joblib.delayed(fail)(value) for value in range(4))


@pytest.mark.slow  # it imports scikit-learn
def test_scikit_learn_runs_on_the_cluster():
    model_selection = pytest.importorskip("sklearn.model_selection")
    from sklearn.datasets import make_classification
    from sklearn.linear_model import LogisticRegression

    register_dualray()
    x, y = make_classification(n_samples=60, random_state=0)
    search = model_selection.GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2)
    with joblib.parallel_backend("ray", n_jobs=2):
        search.fit(x, y)
    assert search.best_score_ > 0.5


def test_time_passes_while_joblib_waits():
    register_dualray()
    start = time.monotonic()
    with joblib.parallel_backend("dualray", n_jobs=2):
        joblib.Parallel()(joblib.delayed(time.sleep)(0.1) for _ in range(2))
    assert time.monotonic() - start >= 0.1


def test_a_pool_takes_calls_with_several_results():
    @ray.remote
    class Two:
        @ray.method(num_returns=2)
        def both(self, value):
            return value, -value

    pool = ActorPool([Two.remote() for _ in range(2)])
    for value in range(4):
        pool.submit(lambda actor, value: actor.both.remote(value), value)
    assert [pool.get_next(), pool.get_next()] == [[0, 0], [1, -1]]
    assert sorted([pool.get_next_unordered(), pool.get_next_unordered()]) == [[2, -2], [3, -3]]
    assert pool.has_free()
