"""What suites ask here: whether the program is one of the Ray Client's, which it never is."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dualray.as_ray.refusals import refusing

__all__ = ["client_mode_hook", "client_mode_should_convert", "disable_client_hook", "is_client_mode_enabled"]

is_client_mode_enabled = False


def client_mode_should_convert() -> bool:
    """Never."""
    return False


def client_mode_hook(func: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return func


@contextmanager
def disable_client_hook() -> Iterator[None]:
    """Nothing is changed."""
    yield


__getattr__ = refusing("ray._private.client_mode_hook")
