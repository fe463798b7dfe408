"""TensorFlowVariables: weights out and in, by name and flat, without growing the graph, and without copies."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import dualray as ray
from dualray.experimental import TensorFlowVariables
from tests.conformance.support import storage_of

pytestmark = pytest.mark.filterwarnings("ignore")  # TensorFlow's and Keras's own

ROWS = 400


def network(*, is_resource: bool):
    from tensorflow.compat import v1 as tf  # not above: collecting tests shall not take its 4 s

    graph = tf.Graph()
    with graph.as_default():
        inputs = tf.placeholder(tf.float32, [None, ROWS])
        weights = tf.get_variable("w", [ROWS, 100], use_resource=is_resource)
        bias = tf.get_variable("b", [100], use_resource=is_resource, initializer=tf.zeros_initializer())
        tf.get_variable("unused", [3], use_resource=is_resource)
        hidden = tf.get_variable("hidden", [2], use_resource=is_resource, collections=[])
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs, weights) + bias))
        train = tf.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
        started = tf.Session()
        started.run([tf.global_variables_initializer(), hidden.initializer])
    return {"graph": graph, "loss": loss, "train": train, "sess": started, "inputs": inputs, "hidden": hidden}


@pytest.fixture(params=[True, False], ids=["resource", "ref"])
def net(request):
    made = network(is_resource=request.param)
    yield made
    made["sess"].close()


def test_weights_go_out_and_come_back(net):
    variables = TensorFlowVariables(net["loss"], net["sess"])
    assert list(variables.variables) == ["w", "b"]
    weights = variables.get_weights()
    assert {name: value.shape for name, value in weights.items()} == {"w": (ROWS, 100), "b": (100,)}
    variables.set_weights({"b": np.arange(100)})
    assert (variables.get_weights()["b"] == np.arange(100)).all()
    assert (variables.get_weights()["w"] == weights["w"]).all()
    variables.set_weights(weights)
    assert not variables.get_weights()["b"].any()


def test_flat_weights(net):
    variables = TensorFlowVariables(net["loss"], net["sess"])
    assert variables.get_flat_size() == ROWS * 100 + 100
    flat = np.arange(variables.get_flat_size(), dtype=np.float32)
    variables.set_flat(flat)
    assert (variables.get_flat() == flat).all()
    assert (variables.get_weights()["w"].ravel() == flat[: ROWS * 100]).all()


def test_a_train_operation_has_the_optimizers_variables_too(net):
    variables = TensorFlowVariables(net["train"], net["sess"], input_variables=[net["hidden"]])
    assert list(variables.variables) == ["w", "b", "w/Momentum", "b/Momentum", "hidden"]


def test_the_graph_does_not_grow(net):
    variables = TensorFlowVariables([net["loss"], net["train"]], net["sess"])
    net["graph"].finalize()
    for _ in range(50):
        variables.set_weights(variables.get_weights())
        variables.set_flat(variables.get_flat())
        net["sess"].run(net["train"], {net["inputs"]: np.ones((4, ROWS))})


def test_another_session_of_the_graph(net):
    from tensorflow.compat import v1 as tf

    variables = TensorFlowVariables(net["loss"])
    with pytest.raises(RuntimeError, match="set_session"):
        variables.get_weights()
    variables.set_session(net["sess"])
    weights = variables.get_weights()
    with tf.Session(graph=net["graph"]) as other:
        variables.set_session(other)
        variables.set_weights(weights)  # also those that were never initialized there
        assert (variables.get_flat() == np.concatenate([weights["w"].ravel(), weights["b"]])).all()


def test_what_is_refused(net):
    variables = TensorFlowVariables(net["loss"], net["sess"])
    with pytest.raises(KeyError, match="Did you mean 'w'"):
        variables.set_weights({"w1": 1})
    with pytest.raises(ValueError, match=r"variable b has the shape \(100,\), but the new value has the shape \(3,\)"):
        variables.set_weights({"b": np.zeros(3)})
    with pytest.raises(ValueError, match="40100 weights"):
        variables.set_flat(np.zeros(3))
    with pytest.raises(TypeError, match="takes a tensor or operation"):
        TensorFlowVariables(3)
    with pytest.raises(ValueError, match="depends on no variable"):
        TensorFlowVariables(net["inputs"], net["sess"])


@pytest.mark.parametrize("package", ["keras", "tf_keras"])
def test_keras_models(package):
    keras = pytest.importorskip(package)

    def build():
        return keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])

    one, other = TensorFlowVariables(build()), TensorFlowVariables(build())
    assert list(one.variables) == list(other.variables) == ["0/kernel", "1/bias", "2/kernel", "3/bias"]
    assert one.get_flat_size() == 3 * 4 + 4 + 4 + 1
    other.set_weights(one.get_weights())
    assert (other.get_flat() == one.get_flat()).all()
    one.set_flat(np.arange(21))
    assert (one.get_weights()["2/kernel"].ravel() == [16, 17, 18, 19]).all()
    with pytest.raises(TypeError, match="needs no session"):
        one.set_session(None)
    with pytest.raises(ValueError, match=r"is a Keras model, call the model first|not yet been created"):
        TensorFlowVariables(keras.Sequential([keras.layers.Dense(4)]))


@pytest.mark.parametrize("mode", ["sim", "real"])
def test_shipped_weights_lie_in_the_store_once(mode, net):
    ray.init(mode=mode, num_cpus=1)
    try:
        variables = TensorFlowVariables(net["loss"], net["sess"])
        ref = ray.put(variables.get_weights())
        one, again = ray.get(ref), ray.get(ref)
        assert storage_of(one["w"]) == storage_of(again["w"])
        assert not one["w"].flags.owndata
        assert not one["w"].flags.writeable
        if mode == "real":
            assert storage_of(one["w"])[0] != "memory"  # it is the store's memory, mapped
        variables.set_weights(one)  # read-only arrays will do
        assert (variables.get_weights()["w"] == one["w"]).all()
        del one, again
    finally:
        ray.shutdown()


def test_nobody_pays_for_tensorflow_who_does_not_use_it():
    program = "import sys, dualray, dualray.classic, dualray.experimental; assert 'tensorflow' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_processes_of_a_simulation_have_default_graphs_of_their_own():
    program = """
import dualray.classic as ray
import dualray.experimental.tf1 as tf

class Net:
    def __init__(self):
        self.v = tf.Variable(tf.zeros([1]))
        self.sess = tf.Session()
        self.variables = ray.experimental.TensorFlowVariables(self.v, self.sess)
        self.sess.run(tf.global_variables_initializer())

    def names(self):
        with self.sess:                      # a wait in the middle of a default session
            ray.get(ray.put(1)), ray.get(ray.remote(lambda: 1).remote())
            assert tf.get_default_session() is self.sess
        return list(self.variables.variables)

before = tf.Variable(tf.zeros([1]))
ray.init()
here = Net()
nets = [ray.remote(Net).remote() for _ in range(3)]
print(ray.get([net.names.remote() for net in nets]), list(here.variables.variables), before.op.name)
"""
    environment = {**os.environ, "DUALRAY_MODE": "sim", "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=90)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[['Variable'], ['Variable'], ['Variable']] ['Variable_1'] Variable\n"
