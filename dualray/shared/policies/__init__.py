"""Pure choices, one policy a file, named in the config by dotted path: every process loads the same one, and users
can supply their own."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

NAMES = {
    "cost": "dualray.shared.policies.eviction.cost_aware:CostAwareEviction",
    "lru": "dualray.shared.policies.eviction.lru:LruEviction",
    "spill": "dualray.shared.policies.eviction.spill:SpillEviction",
}
"""Short names of policies."""

MOVED = {
    "dualray.shared.policies.cost_aware": "dualray.shared.policies.eviction.cost_aware",
    "dualray.shared.policies.memory": "dualray.shared.policies.worker_killing",
    "dualray.shared.policies.lru": "dualray.shared.policies.eviction.lru",
    "dualray.shared.policies.spill": "dualray.shared.policies.eviction.spill",
}
"""Modules of 0.1.0 that decision logs and settings name, and where their policies are now."""


_METHODS = {"retry_policy": "should_retry", "reconstruction_policy": "plan"}
"""The methods that policies of a setting must have, where it is not `choose`."""


def check_policy(setting: str, dotted_path: str) -> None:
    """Whether a policy can be used for a setting, such as `placement_policy`.

    Raises:
        ValueError: as `load_policy`, or the class is no policy of this kind; the message says which method it lacks.
    """
    method = _METHODS.get(setting, "choose")
    if not callable(getattr(load_policy(dotted_path), method, None)):
        raise ValueError(f"policy {dotted_path!r} has no method {method!r}, which each {setting} needs")


def load_policy(dotted_path: str) -> Any:
    """The policy object that `package.module:Class`, or a short name, names, made without arguments.

    Raises:
        ValueError: the path names no class; the message says which part is wrong.
    """
    return _class_of(dotted_path)()


@cache
def _class_of(dotted_path: str) -> Any:
    module_name, _, class_name = NAMES.get(dotted_path, dotted_path).partition(":")
    if not module_name or not class_name:
        raise ValueError(f"policy {dotted_path!r} must be written 'package.module:Class'")
    try:
        module = import_module(MOVED.get(module_name, module_name))
    except (ImportError, TypeError, ValueError) as error:  # the latter two: no name of a module
        raise ValueError(f"policy {dotted_path!r}: module {module_name!r} cannot be imported: {error}") from error
    policy = getattr(module, class_name, None)
    if policy is None:
        raise ValueError(f"policy {dotted_path!r}: module {module_name!r} has no {class_name!r}")
    if not isinstance(policy, type):  # a decision log or a scenario of somebody else's may name any function
        raise ValueError(f"policy {dotted_path!r}: {class_name!r} is a {type(policy).__name__}, but must be a class")
    return policy
