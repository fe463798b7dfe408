"""`ray.actor`, of dualray."""

from typing import TypeVar, Union

from dualray.actor import *
from dualray.actor import ActorHandle
from dualray.as_ray.refusals import refusing

T = TypeVar("T")

ActorProxy = Union[ActorHandle[T], type[T]]  # noqa: UP007 - `ActorProxy[MyClass]` needs the older spelling
"""For type checkers: what `ActorClass.remote` returns, with the methods of the class."""

__getattr__ = refusing("ray.actor")
