"""`request_resources`, under the name of the module that has it in Ray (`ray.autoscaler.sdk`), and `status`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualray.first_verb import started
from dualray.shared.labels import parse_selector
from dualray.shared.model.demands import parse_named

__all__ = ["request_resources", "status"]

_ONE_CPU = {"CPU": 1.0}
_CPUS_MAX = 10_000_000


def request_resources(
    num_cpus: int | None = None,
    bundles: Sequence[Mapping[str, float]] | None = None,
    bundle_label_selectors: Sequence[Mapping[str, str]] | None = None,
) -> None:
    """Ask the autoscaler for a cluster that is large enough for these CPUs and bundles, even if nothing uses them.

    The autoscaler launches the nodes at once, whatever `upscaling_speed_percent` is, and keeps them while the request
    stands. It meets the whole request or nothing: if the `max` of the groups does not allow it, no node is launched.
    Running tasks count: `num_cpus=100` asks for 100 CPUs in total. A call replaces the program's request before. A call
    without arguments, or with `num_cpus=0`, withdraws it, and so does the end of the program. In a cluster without
    groups of nodes nothing happens.

    Args:
        num_cpus: number of bundles of one CPU.
        bundles: resources that must each fit on one node, by name: `[{"CPU": 4, "GPU": 1}]`.
        bundle_label_selectors: conditions on the labels of each bundle's node: `[{"zone": "in(a, b)"}]`.

    Raises:
        TypeError, ValueError: an argument is wrong.
        NotInitializedError: no cluster runs, and none can be started here.
    """
    if num_cpus is not None and (isinstance(num_cpus, bool) or not isinstance(num_cpus, int)):
        raise TypeError(f"request_resources: num_cpus={num_cpus!r} must be an int")
    if num_cpus is not None and not 0 <= num_cpus <= _CPUS_MAX:
        raise ValueError(f"request_resources: num_cpus={num_cpus!r} must be 0 to {_CPUS_MAX:,}")
    wanted = _parse_bundles(bundles)
    selectors = _parse_selectors(bundle_label_selectors, len(wanted))
    ones = num_cpus or 0
    started("request_resources").verbs.request_resources(
        bundles=[*[_ONE_CPU] * ones, *wanted], selectors=[*[{}] * ones, *selectors]
    )


def status() -> dict[str, list[dict[str, Any]]]:
    """Return the state of the autoscaler; the lists are empty in a cluster without groups of nodes.

    `groups` has a dict for each group with `group`, `min`, `max`, `nodes`, `launching`, `leaving`, `resources` of one
    node, `price_per_hour`, `refused` (why no node can be launched now), `kept` (idle nodes that stay, and why),
    `start_ups_s` (the seconds from a launch until its node joined, of the last 100) and `node_seconds` (of all nodes,
    from launch to end, or until now). `demands` has what waits for nodes or was requested, with `demand`, `count` and
    `not_launched` (why no node is launched for it, by group). `launches` has the launches in progress, with `launch`,
    `group` and `for_s`.

    Raises:
        DualrayError: the head did not answer.
    """
    verbs = started("status").verbs
    return {
        "groups": verbs.head_rows("autoscaler"),
        "demands": verbs.head_rows("demands"),
        "launches": verbs.head_rows("launches"),
    }


def _parse_bundles(bundles: Any) -> list[Mapping[str, float]]:
    if bundles is None:
        return []
    if not isinstance(bundles, list | tuple):
        raise TypeError(f"request_resources: bundles={bundles!r} must be a list of dicts, such as [{{'CPU': 4}}]")
    for index, bundle in enumerate(bundles):
        if not isinstance(bundle, Mapping):
            raise TypeError(
                f"request_resources: bundle {index} is {bundle!r}, but must be a dict, such as {{'CPU': 4}}"
            )
        try:
            demand = parse_named(bundle)
        except (TypeError, ValueError) as error:
            raise type(error)(f"request_resources: bundle {index}: {error}") from None
        if not demand.units:
            raise ValueError(
                f"request_resources: bundle {index}, {bundle!r}, requests no resources; leave this bundle out"
            )
    return list(bundles)


def _parse_selectors(selectors: Any, count: int) -> list[Mapping[str, str]]:
    if selectors is None:
        return [{}] * count
    if not isinstance(selectors, list | tuple):
        raise TypeError(
            f"request_resources: bundle_label_selectors={selectors!r} must be a list of dicts, such as "
            "[{'zone': 'a'}]"
        )
    if len(selectors) != count:
        raise ValueError(
            f"request_resources: bundle_label_selectors has {len(selectors)} selectors for {count} bundles; give one "
            "selector for each bundle"
        )
    for index, selector in enumerate(selectors):
        parse_selector(f"request_resources: bundle_label_selectors[{index}]", selector)
    return list(selectors)
