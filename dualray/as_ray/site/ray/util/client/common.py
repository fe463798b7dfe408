"""The classes of the Ray Client, which have no instances here: libraries compare the types of values with them."""

from typing import Any

from dualray.as_ray import absent
from dualray.as_ray.refusals import refusing

__all__ = [
    "ClientActorClass",
    "ClientActorHandle",
    "ClientActorRef",
    "ClientObjectRef",
    "ClientRemoteFunc",
    "ClientRemoteMethod",
    "ClientStub",
]


class ClientStub:
    """The base class."""

    def __init__(self, *_args: Any, **_named: Any) -> None:
        """Refuse: only the Ray Client has instances."""
        raise NotImplementedError(absent("ray.util.client"))


class ClientRemoteFunc(ClientStub):
    """A remote function."""


class ClientActorClass(ClientStub):
    """An actor class."""


class ClientActorHandle(ClientStub):
    """An actor."""


class ClientRemoteMethod(ClientStub):
    """A method of an actor."""


class ClientObjectRef(ClientStub):
    """A reference."""


class ClientActorRef(ClientStub):
    """A reference of an actor."""


__getattr__ = refusing("ray.util.client.common")
del Any, refusing
