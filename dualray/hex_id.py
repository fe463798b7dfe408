"""Ids as texts that answer what Ray's ids answer."""

from __future__ import annotations


class HexId(str):
    """An id as text, which also answers what Ray's ids answer."""

    __slots__ = ()

    def hex(self) -> str:
        """The text itself."""
        return str(self)

    def binary(self) -> bytes:
        """The id's bytes; of an id that is a name, such as `node-0`, the name's."""
        try:
            return bytes.fromhex(self)
        except ValueError:
            return self.encode()

    def is_nil(self) -> bool:
        """Whether there is none."""
        return not self
