"""Graphs of tasks and actors: `bind` and `execute`, as in `ray.dag`."""

from __future__ import annotations

import threading

import pytest

import dualray as ray
from dualray.dag import (
    ClassMethodNode,
    ClassNode,
    FunctionNode,
    InputAttributeNode,
    InputNode,
    MultiOutputNode,
)
from dualray.exceptions import SerializationError
from tests.conformance.support import get

CLUSTER = {"num_cpus": 4, "nodes": 1}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def add(x, y=0):
    return x + y


@ray.remote
def total(refs):
    return sum(get(list(refs)))


@ray.remote
class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, amount=1):
        self.count += amount
        return self.count

    @ray.method(num_returns=2)
    def count_and_double(self):
        return self.count, 2 * self.count


def test_a_graph_of_tasks_runs_when_it_is_executed(tally):
    @ray.remote
    def noted(value):
        tally.add(value)
        return value

    node = add.bind(noted.bind(1), y=add.bind(2, y=noted.bind(3)))
    assert isinstance(node, FunctionNode)
    assert tally.count == 0
    assert get(node.execute()) == 6
    assert sorted(tally.notes) == ["1", "3"]


def test_each_node_runs_once_in_an_execute(tally):
    @ray.remote
    def drawn():
        return tally.add()

    @ray.remote
    def pair(a, b, more):
        return a, b, get(more["c"])

    shared = drawn.bind()
    node = pair.bind(shared, shared, {"c": shared})
    assert get(node.execute()) == (1, 1, 1)
    assert get(node.execute()) == (2, 2, 2)


class Box:
    def __init__(self, content):
        self.content = content


def test_nodes_are_found_inside_of_arguments():
    assert get(total.bind([add.bind(1), add.bind(2)]).execute()) == 3
    assert get(total.bind((add.bind(1), add.bind(2))).execute()) == 3
    by_name = ray.remote(lambda refs: {name: get(ref) for name, ref in refs.items()})
    assert get(by_name.bind({"a": add.bind(1), "b": add.bind(2)}).execute()) == {"a": 1, "b": 2}
    opened = ray.remote(lambda box: get(box.content[0]))
    assert get(opened.bind(Box([add.bind(7)])).execute()) == 7


def test_arguments_without_nodes_stay_what_they_are():
    ref = ray.put(5)
    assert get(add.bind(ref, add.bind(1)).execute()) == 6
    node = add.bind(threading.Lock(), add.bind(1))
    with pytest.raises(SerializationError, match="argument 0 of add"):
        node.execute()


def test_an_actor_of_a_graph_is_made_by_each_execute():
    counter = Counter.bind(add.bind(10))
    assert isinstance(counter, ClassNode)
    node = counter.add.bind(5)
    assert isinstance(node, ClassMethodNode)
    assert get(node.execute()) == 15
    assert get(node.execute()) == 15
    handle = counter.execute()
    assert get(handle.add.remote(1)) == 11


def test_calls_of_an_actor_run_in_the_order_in_which_they_were_bound():
    counter = Counter.bind(1)
    counter.add.bind(1)
    second, third = counter.add.bind(10), counter.add.bind(100)
    assert get(add.bind(third, second).execute()) == 112 + 12
    assert get(third.execute()) == 112
    assert get(second.execute()) == 12


def test_a_graph_over_a_handle_uses_that_actor():
    counter = Counter.remote(5)
    node = counter.add.bind(2)
    assert get(node.execute()) == 7
    assert get(node.execute()) == 9
    assert get(counter.add.remote(0)) == 9


def test_a_method_with_two_results_is_two_nodes_of_a_handle():
    count, double = Counter.remote(4).count_and_double.bind()
    assert (count.output_idx, double.output_idx, double.is_class_method_output) == (0, 1, True)
    assert get(add.bind(count, double).execute()) == 12
    assert get(double.execute()) == 8
    assert get(Counter.bind(3).count_and_double.bind().execute()) == [3, 6]


def test_the_input_of_a_graph():
    with InputNode() as inp:
        node = add.bind(inp, 5)
    assert get(node.execute(3)) == 8
    assert get(node.execute(4)) == 9


def test_parts_of_the_input():
    with InputNode() as inp:
        by_position = add.bind(inp[0], inp[1])
        mixed = add.bind(inp[0], inp.y)
        by_name = add.bind(inp["a"], inp["b"])
        by_attribute = add.bind(inp.content, 1)
    assert isinstance(inp[0], InputAttributeNode)
    assert inp.y is inp["y"] is mixed.get_args()[1]
    assert get(by_position.execute(1, 2)) == get(by_position.execute([1, 2])) == 3
    assert get(mixed.execute(1, y=3)) == 4
    assert get(by_name.execute({"a": 1, "b": 4})) == get(by_name.execute(a=1, b=4)) == 5
    assert get(by_attribute.execute(Box(5))) == 6


def test_a_part_that_the_input_lacks_is_named():
    with InputNode() as inp:
        node = add.bind(inp.x, inp[1])
    with pytest.raises(KeyError, match="x") as raised:
        node.execute(1, 2)
    assert raised.value.__notes__ == [
        "The graph needs InputNode().x, but execute() was called with DAGInputData(1, 2): pass it to execute()."
    ]
    with pytest.raises(IndexError):
        node.execute(1, x=2)


def test_several_outputs():
    with InputNode() as inp:
        node = MultiOutputNode([add.bind(inp, 1), add.bind(inp, 2)])
    assert get(node.execute(1)) == [2, 3]
    with pytest.raises(ValueError, match="Invalid input type for `args`"):
        MultiOutputNode(add.bind(1))


def test_an_input_is_opened_and_there_is_one():
    inp = InputNode()
    with pytest.raises(AssertionError, match="InputNode is a singleton instance"):
        add.bind(inp, 1).execute(1)
    with InputNode() as one, InputNode() as two:
        node = add.bind(one, two)
    with pytest.raises(AssertionError, match="only have one unique InputNode"):
        node.execute(1)
    with pytest.raises(ValueError, match="should not take any args"):
        InputNode(1)
    with pytest.raises(AssertionError, match="int index or str"):
        inp[1.5]
    with pytest.raises(ValueError, match="an actor of a graph is created without the graph's input"):
        Counter.bind([inp])


def test_what_a_node_cannot_do_says_what_can():
    node = add.bind(1)
    with pytest.raises(AttributeError, match=r"\.remote\(\) cannot be used .* run add\.bind\(1\) with \.execute\(\)"):
        node.remote()
    with pytest.raises(AttributeError, match=r"\.bind\(\) cannot be used again"):
        node.bind()
    with pytest.raises(AttributeError, match=r"no method 'ad'\. Did you mean 'add'"):
        Counter.bind().ad  # noqa: B018
    with pytest.raises(AttributeError, match=r"write \.add\.bind"):
        Counter.bind().add.remote()
    with pytest.raises(NotImplementedError, match=r"no compiled graphs\. node\.execute"):
        node.experimental_compile()
    circle = []
    circle.append(add.bind(1, circle))
    with pytest.raises(ValueError, match="one of its own arguments"):
        circle[0].execute()


def test_options_are_those_of_the_call():
    node = add.options(num_cpus=2, name="plus").bind(1, y=2)
    assert (node.get_args(), node.get_kwargs()) == ((1,), {"y": 2})
    assert node.get_options() == {"num_cpus": 2, "name": "plus"}
    assert get(node.execute()) == 3
    assert len(Counter.bind(1).count_and_double.options(num_returns=2).bind().execute()) == 2
    with pytest.raises(ValueError, match="num_return"):
        Counter.bind(1).add.options(num_return=2)


def test_nodes_are_in_rays_modules():
    """Programs import them from there, as those of Ray's guide do."""
    from dualray.dag import class_node, dag_node, function_node, input_node, output_node

    assert input_node.InputNode is InputNode
    assert output_node.MultiOutputNode is MultiOutputNode
    assert (class_node.ClassNode, function_node.FunctionNode) == (ClassNode, FunctionNode)
    assert all(issubclass(each, dag_node.DAGNode) for each in (InputNode, MultiOutputNode, ClassNode, FunctionNode))


def test_a_graph_can_be_sent_to_a_task_and_made_there():
    with InputNode() as inp:
        node = Counter.bind(1).add.bind(add.bind(inp, inp))

    @ray.remote
    def run(node, value):
        return get(node.execute(value)), get(add.bind(add.bind(1), 1).execute())

    assert get(run.remote(node, 3)) == (7, 2)


def test_the_error_of_a_node_is_that_of_what_follows():
    node = add.bind(ray.remote(lambda: 1 / 0).bind())
    with pytest.raises(ZeroDivisionError):
        get(node.execute())


def test_a_long_graph():
    node = add.bind(0)
    for _ in range(1200):
        node = add.options(num_cpus=0).bind(node, 1)
    assert get(node.execute()) == 1200
