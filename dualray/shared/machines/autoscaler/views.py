"""What a scaling policy is shown, as text and back: so that another policy can be asked what it would do now."""

from __future__ import annotations

import json
from typing import Any

from dualray.shared.model.resources import Resources
from dualray.shared.model.specs import GroupStrategy, LabelOperator, LabelTerm
from dualray.shared.policies.scaling import Demand, Gang, NodeGroupSpec, ScaledNode, ScaleView


def view_to_text(view: ScaleView) -> str:
    """For `view_of`."""
    return json.dumps(
        {
            "groups": [
                {
                    "name": group.name,
                    "total": _units(group.total),
                    "labels": [list(row) for row in group.labels],
                    "least": group.least,
                    "most": group.most,
                    "price": group.price,
                }
                for group in view.groups
            ],
            "nodes": [
                {
                    "name": node.name,
                    "group": node.group,
                    "total": dict(node.total),
                    "free": dict(node.free),
                    "labels": dict(node.labels),
                    "is_joined": node.is_joined,
                    "idle_ns": node.idle_ns,
                }
                for node in view.nodes
            ],
            "demands": [_demand(demand) for demand in view.demands],
            "gangs": [
                {
                    "name": gang.name,
                    "bundles": [_units(bundle) for bundle in gang.bundles],
                    "strategy": gang.strategy.value,
                    "selectors": [_terms(terms) for terms in gang.selectors],
                    "nodes": list(gang.nodes),
                }
                for gang in view.gangs
            ],
            "requested": [[_demand(demand) for demand in demands] for demands in view.requested],
            "idle_timeout_ns": view.idle_timeout_ns,
            "speed_percent": view.speed_percent,
            "closed": dict(view.closed),
            "leaving": dict(view.leaving),
        }
    )


def view_of(text: str) -> ScaleView:
    """The view of a text."""
    row = json.loads(text)
    return ScaleView(
        groups=[
            NodeGroupSpec(
                name=group["name"],
                total=_resources(group["total"]),
                labels=tuple([(key, value) for key, value in group["labels"]]),
                least=group["least"],
                most=group["most"],
                price=group["price"],
            )
            for group in row["groups"]
        ],
        nodes=[ScaledNode(**node) for node in row["nodes"]],
        demands=[_demand_of(demand) for demand in row["demands"]],
        gangs=[
            Gang(
                name=gang["name"],
                bundles=tuple([_resources(bundle) for bundle in gang["bundles"]]),
                strategy=GroupStrategy(gang["strategy"]),
                selectors=tuple([_terms_of(terms) for terms in gang["selectors"]]),
                nodes=tuple(gang["nodes"]),
            )
            for gang in row["gangs"]
        ],
        requested=[[_demand_of(demand) for demand in demands] for demands in row["requested"]],
        idle_timeout_ns=row["idle_timeout_ns"],
        speed_percent=row["speed_percent"],
        closed=row["closed"],
        leaving=row.get("leaving", {}),  # heads of earlier versions do not say
    )


def _units(resources: Resources) -> list[list[Any]]:
    return [list(row) for row in resources.units]


def _resources(rows: list[list[Any]]) -> Resources:
    return Resources(tuple([(str(name), int(units)) for name, units in rows]))


def _terms(terms: tuple[LabelTerm, ...]) -> list[list[Any]]:
    return [[term.key, term.operator.value, list(term.values)] for term in terms]


def _terms_of(rows: list[list[Any]]) -> tuple[LabelTerm, ...]:
    terms = [LabelTerm(key=key, operator=LabelOperator(sign), values=tuple(values)) for key, sign, values in rows]
    return tuple(terms)


def _demand(demand: Demand) -> dict[str, Any]:
    return {"resources": _units(demand.resources), "labels": _terms(tuple(demand.labels)), "count": demand.count}


def _demand_of(row: dict[str, Any]) -> Demand:
    return Demand(resources=_resources(row["resources"]), labels=_terms_of(row["labels"]), count=row["count"])
