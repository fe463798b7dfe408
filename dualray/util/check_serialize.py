"""`inspect_serializability`, under the name of the module that Ray has it in; see serialization.py."""

from dualray.util.serialization import FailureTuple, inspect_serializability

__all__ = ["FailureTuple", "inspect_serializability"]
