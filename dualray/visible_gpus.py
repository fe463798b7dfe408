"""What CUDA_VISIBLE_DEVICES says in a process that holds no GPU."""

from __future__ import annotations

import os
from typing import Final

from dualray.exceptions import rays_words

OVERRIDE_VARIABLE: Final = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"


def hides_gpus() -> bool:
    """Whether such a process sees none. Under the name `ray` it sees what its node does, as in Ray 2.60, unless
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO is set."""
    return rays_words() is None or os.environ.get(OVERRIDE_VARIABLE, "0").lower() not in ("", "0", "false")


def names_for_ray(mask: str | None) -> tuple[str, ...]:
    """The names in CUDA_VISIBLE_DEVICES of a program for Ray, which Ray takes for those of the GPUs that it offers."""
    return tuple([name.strip() for name in mask.split(",")]) if mask and rays_words() is not None else ()
