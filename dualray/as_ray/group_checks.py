"""Checks of placement groups by themselves, as Ray's own tests call them; each raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dualray.shared.labels import parse_selector
from dualray.util.placement_group import VALID_PLACEMENT_GROUP_STRATEGIES

__all__ = ["validate_placement_group"]


def _validate_bundles(bundles: Any) -> None:
    """Raise ValueError unless these are bundles that reserve something."""
    if not isinstance(bundles, list):
        raise ValueError(f"bundles={bundles!r} must be a list")
    if not bundles:
        raise ValueError("bundles=[] must be a non-empty list of resource dictionaries, such as [{'CPU': 1}]")
    for bundle in bundles:
        is_plain = isinstance(bundle, Mapping) and all(
            isinstance(name, str) and isinstance(amount, int | float) for name, amount in bundle.items()
        )
        if not is_plain:
            raise ValueError(f"bundles={bundles!r} must be a list of resource dictionaries, such as [{{'CPU': 1}}]")
        if not any(bundle.values()):
            raise ValueError(
                f"bundles={bundles!r}: each bundle must reserve a resource, but one bundle is empty or has only 0 "
                "values"
            )


def _validate_bundle_label_selector(bundle_label_selector: Any) -> None:
    """Raise ValueError unless these are selectors of labels."""
    what = f"bundle_label_selector={bundle_label_selector!r}"
    if not isinstance(bundle_label_selector, list):
        raise ValueError(f"{what} must be a list")
    for number, selector in enumerate(bundle_label_selector):
        if not isinstance(selector, Mapping) or not all(
            isinstance(text, str) for pair in selector.items() for text in pair
        ):
            raise ValueError(
                f"{what} must be a list of dicts whose keys and values are str. (Bundle label selector must be a list "
                "of string dictionary label selectors.)"
            )
        try:
            parse_selector(f"bundle_label_selector[{number}]", selector)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{error}. (Invalid label selector provided.)") from error


def validate_placement_group(
    bundles: list[Mapping[str, float]],
    strategy: str = "PACK",
    lifetime: str | None = None,
    _soft_target_node_id: str | None = None,
    bundle_label_selector: Sequence[Mapping[str, str]] | None = None,
) -> bool:
    """True: these are arguments that `placement_group` takes.

    Raises:
        ValueError: one of them is wrong.
    """
    _validate_bundles(bundles)
    if bundle_label_selector is not None:
        if len(bundles) != len(bundle_label_selector):
            raise ValueError(
                f"bundle_label_selector has {len(bundle_label_selector)} selectors for {len(bundles)} bundles; give "
                "one selector for each bundle"
            )
        _validate_bundle_label_selector(bundle_label_selector)
    if strategy not in VALID_PLACEMENT_GROUP_STRATEGIES:
        known = ", ".join(VALID_PLACEMENT_GROUP_STRATEGIES)
        raise ValueError(f"strategy={strategy!r} must be one of {known}. (Invalid placement group strategy.)")
    if lifetime not in (None, "detached"):
        raise ValueError(f"lifetime={lifetime!r} must be None or 'detached'")
    return True
