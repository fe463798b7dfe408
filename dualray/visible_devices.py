"""Variables that say which accelerators a process may use: CUDA_VISIBLE_DEVICES, TPU_VISIBLE_CHIPS and others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from dualray.exceptions import rays_words
from dualray.runtime_env import from_text
from dualray.shared.model.accelerators import KINDS, TPU, TPU_VARIABLES, Kind, Names, named, names_in, shown_by

OVERRIDE_VARIABLE: Final = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
VARIABLES: Final = (*[kind.variable for kind in KINDS], *TPU_VARIABLES)
"""All that dualray sets."""


def hides(kind: Kind) -> bool:
    """Whether a process that holds none of these devices sees none.

    It sees no GPU, and of other kinds what its node sees. Under the name `ray` it sees all that its node does, as in
    Ray 2.60. RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO hides all kinds there.
    """
    if rays_words() is None:
        return kind.needs_fresh_worker
    return os.environ.get(OVERRIDE_VARIABLE, "0").lower() not in ("", "0", "false")


def hidden() -> dict[str, str]:
    """The variables of a process that holds no device."""
    return {kind.variable: "" for kind in KINDS if hides(kind)}


def names_for_ray() -> dict[str, tuple[str, ...]]:
    """The names of devices in the environment of a program for Ray, which Ray takes for those that it offers."""
    if rays_words() is None:
        return {}
    found = {kind.name: names_in(kind, os.environ.get(kind.variable, "")) for kind in KINDS}
    return {name: names for name, names in found.items() if names}


def shown(devices: Sequence[int], names: Names, runtime_env: str) -> dict[str, str]:
    """The variables of a process that holds these devices of its node, and has a runtime environment.

    Under the name `ray`, the variables RAY_EXPERIMENTAL_NOSET_... keep a variable as it is.
    """
    variables = hidden()
    env_vars = dict(from_text(runtime_env).env_vars)
    held = named(devices, names)
    for kind in KINDS:
        if kind.name in held:
            variables |= shown_by(kind, held[kind.name])
        if kind.variable in variables and _is_kept(kind, env_vars):
            for name in (kind.variable, *TPU_VARIABLES) if kind.name == TPU else (kind.variable,):
                variables.pop(name, None)
    return variables


def _is_kept(kind: Kind, env_vars: Mapping[str, str]) -> bool:
    said = env_vars.get(kind.keeps_variable, os.environ.get(kind.keeps_variable, ""))
    return rays_words() is not None and said.lower() in ("1", "true")


class VisibleDevices:
    """Keeps the environment of a worker at the devices that it holds, by name.

    What user code itself writes there stays until the lease is another one's.
    """

    def __init__(self, names: Names) -> None:
        self._names = names
        self._devices: tuple[int, ...] | None = None
        self._before: dict[str, str | None] = {}
        """The variables that it has set, as they were."""

    def show(self, devices: tuple[int, ...], runtime_env: str) -> None:
        """From now on this process, which has a runtime environment, may use these devices of its node."""
        if devices == self._devices:
            return
        self._devices = devices
        for name, value in self._before.items():
            if value is not None:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        variables = shown(devices, self._names, runtime_env)
        self._before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
