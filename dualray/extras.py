"""What the extras of dualray bring, and the error of whoever needs one that is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dualray.exceptions import DualrayError

__all__ = ["BRINGS", "needs"]

BRINGS: Final = {
    "cluster": ("redis",),
    "gpu": ("pynvml",),
    "metrics": ("prometheus_client",),
    "runtime-env": ("packaging",),
}
"""The modules of the extras that `needs` knows."""


@contextmanager
def needs(what: str, extra: str) -> Iterator[None]:
    """Import, in this block, modules that an extra brings.

    Args:
        what: the beginning of the error's sentence, such as "init(metrics_port=)".

    Raises:
        DualrayError: one of them is not installed; the message has pip's line.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in BRINGS[extra]:
            raise
        raise DualrayError(f"{what} needs {name}, which is not installed: pip install 'dualray[{extra}]'") from None
