from __future__ import annotations

import pytest

import dualray as ray
from dualray.exceptions import ActorUnschedulableError, PlacementGroupUnschedulableError, TaskUnschedulableError
from dualray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from dualray.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
)
from tests.conformance.support import get, node_ids

CLUSTER = {"num_cpus": 2, "labels": {"zone": "a", "dualray.test/market": "spot"}}
pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def where():
    return ray.get_runtime_context().get_node_id()


@ray.remote
class Place:
    def where(self):
        return ray.get_runtime_context().get_node_id()


def test_nodes_have_their_labels_and_their_name():
    for row in ray.nodes():
        assert row["Labels"] == {"zone": "a", "dualray.test/market": "spot", "ray.io/node-id": row["NodeID"]}


@pytest.mark.parametrize(
    "selector",
    [
        {"zone": "a"},
        {"zone": "in(a, b)"},
        {"zone": "!b"},
        {"zone": "!in(b,c)", "dualray.test/market": "spot"},
        {"absent": "!x"},
        {"ray.io/node-id": "the first"},
    ],
)
def test_a_selector_that_holds_finds_a_node(selector):
    if "ray.io/node-id" in selector:
        selector = {"ray.io/node-id": min(node_ids())}
    assert get(where.options(label_selector=selector).remote()) in node_ids()
    assert get(Place.options(label_selector=selector).remote().where.remote()) in node_ids()


def test_a_fallback_takes_the_place_of_a_selector_that_no_node_meets():
    home = min(node_ids())
    fallbacks = [
        {"label_selector": {"zone": "c"}},
        {"label_selector": {"ray.io/node-id": home}},
        {"label_selector": {}},
    ]
    options = {"label_selector": {"zone": "b"}, "fallback_strategy": fallbacks}
    task, actor = where.options(**options), Place.options(**options)
    assert get([task.remote(), task.remote()]) == [home, home]
    assert get(actor.remote().where.remote()) == home
    anywhere = where.options(label_selector={"zone": "b"}, fallback_strategy=[{"label_selector": {}}])
    assert get(anywhere.remote()) in node_ids()


def test_a_selector_that_a_node_meets_needs_no_fallback():
    home = max(node_ids())
    options = {
        "label_selector": {"ray.io/node-id": home},
        "fallback_strategy": [{"label_selector": {"ray.io/node-id": min(node_ids())}}],
    }
    assert get(where.options(**options).remote()) == home


def test_when_no_fallback_is_met_the_first_selector_says_why():
    options = {"label_selector": {"zone": "b"}, "fallback_strategy": [{"label_selector": {"zone": "c"}}]}
    with pytest.raises(TaskUnschedulableError, match="zone=b does not match"):
        get(where.options(**options).remote())


@pytest.mark.parametrize(
    ("fallbacks", "error", "why"),
    [
        ({"label_selector": {"zone": "a"}}, TypeError, "must be a list"),
        (["zone"], ValueError, "whose only key is label_selector"),
        ([{"memory": "1GiB"}], ValueError, "whose only key is label_selector"),
        ([{"label_selector": {"zone": "-a-"}}], ValueError, "of a label must have at most 63 letters"),
    ],
)
def test_fallbacks_that_are_wrong_are_refused_where_they_are_written(fallbacks, error, why):
    with pytest.raises(error, match=why):
        where.options(fallback_strategy=fallbacks)


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ({"zone": "b"}, "has dualray.test/market=spot, zone=a, and zone=b does not match"),
        ({"zone": "in(b, c)"}, r"zone=in\(b, c\) does not match"),
        ({"zone": "!a"}, "zone=!a does not match"),
        ({"zone": "a", "absent": "x"}, "absent=x does not match"),
    ],
)
def test_a_selector_that_no_node_meets_is_refused_with_the_reason(selector, why):
    with pytest.raises(TaskUnschedulableError, match=why):
        get(where.options(label_selector=selector).remote())
    with pytest.raises(ActorUnschedulableError, match=why):
        get(Place.options(label_selector=selector).remote().__ray_ready__.remote())


@pytest.mark.parametrize(
    "hard",
    [
        {"zone": In("a", "b")},
        {"zone": NotIn("b")},
        {"zone": Exists()},
        {"absent": DoesNotExist()},
        {"zone": In("a"), "dualray.test/market": In("spot")},
    ],
)
def test_a_label_strategy_that_holds_finds_a_node(hard):
    assert get(where.options(scheduling_strategy=NodeLabelSchedulingStrategy(hard)).remote()) in node_ids()


@pytest.mark.parametrize(
    ("hard", "why"),
    [
        ({"zone": In("b")}, "zone=b"),
        ({"zone": DoesNotExist()}, r"!exists\(zone\)"),
        ({"absent": Exists()}, r"exists\(absent\)"),
    ],
)
def test_a_label_strategy_that_does_not_hold_is_refused(hard, why):
    with pytest.raises(TaskUnschedulableError, match=why):
        get(where.options(scheduling_strategy=NodeLabelSchedulingStrategy(hard=hard)).remote())


def test_what_is_preferred_is_not_demanded():
    strategy = NodeLabelSchedulingStrategy(hard={"zone": In("a")}, soft={"zone": In("b")})
    assert get(where.options(scheduling_strategy=strategy).remote()) in node_ids()


def test_a_selector_narrows_other_strategies_too():
    assert get(where.options(scheduling_strategy="SPREAD", label_selector={"zone": "a"}).remote()) in node_ids()
    affinity = NodeAffinitySchedulingStrategy(min(node_ids()))
    assert get(where.options(scheduling_strategy=affinity, label_selector={"zone": "a"}).remote()) == min(node_ids())
    with pytest.raises(TaskUnschedulableError, match="zone=b"):
        get(where.options(scheduling_strategy=affinity, label_selector={"zone": "b"}).remote())


def test_bundles_have_selectors():
    group = placement_group([{"CPU": 1}, {"CPU": 1}], bundle_label_selector=[{"zone": "a"}, {}])
    assert group.wait(20)
    assert all(placement_group_table(group)["bundles_to_node_id"].values())
    remove_placement_group(group)
    with pytest.raises(PlacementGroupUnschedulableError, match="bundle 0 demands the labels zone=b, which no node has"):
        placement_group([{"CPU": 1}], bundle_label_selector=[{"zone": "b"}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label_selector": "zone=a"}, "must be a dict"),
        ({"label_selector": {"zone": 1}}, "must both be str"),
        ({"label_selector": {"zone!": "a"}}, "the key 'zone!' of a label"),
        ({"label_selector": {"zone": "a b"}}, "the value 'a b' of a label"),
        ({"label_selector": {"zone": "in()"}}, "has no value"),
        ({"label_selector": {"zone": "in(a,, b)"}}, "has an empty value"),
    ],
)
def test_wrong_selectors_are_refused(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        where.options(**options)


@pytest.mark.parametrize("condition", [In, NotIn])
def test_conditions_need_values(condition):
    with pytest.raises(ValueError, match=f"The variadic parameter of the {condition.__name__} operator must be a non-"):
        condition()
    with pytest.raises(ValueError, match=f"Type of value in position 1 for the {condition.__name__} operator must be"):
        condition("a", 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"hard": {"zone": "a"}},
            "value for key zone of the hard parameter must be one of the `In`, `NotIn`, `Exists`",
        ),
        ({"hard": None, "soft": {"zone": 3}}, "value for key zone of the soft parameter must be one of the `In`"),
        ({"hard": {1: Exists()}}, "The map key of the hard parameter must be of type str"),
        ({"hard": None, "soft": ["zone"]}, "The soft parameter must be a map"),
        ({"hard": {}}, "cannot both be empty"),
    ],
)
def test_conditions_are_checked_where_they_are_written(given, words):
    with pytest.raises(ValueError, match=words):
        NodeLabelSchedulingStrategy(**given)
