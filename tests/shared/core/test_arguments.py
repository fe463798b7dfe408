from __future__ import annotations

from enum import StrEnum

from dualray.shared.core.arguments import pack_arguments, pack_plain, unpack_arguments
from dualray.shared.core.layout import MARSHALLED_BEFORE, plain_bytes
from dualray.shared.core.serialization import serialize
from dualray.shared.handles import Reference
from dualray.shared.model.specs import Ref
from tests.shared.builders import ref


class Pointer(Reference):
    __slots__ = ()

    is_value = True

    def __init__(self, to: Ref) -> None:
        self.ref = to


class Name(StrEnum):
    A = "a"


def pack(args, kwargs, found=()):
    """Packed with `found` for the values of references, and what was stored on its own."""
    stored = []

    def put(value):
        stored.append(value)
        return ref(90 + len(stored))

    packed = pack_arguments(
        "call", args, kwargs, inline_bytes_max=1000, put=put, drop=stored.append, look=lambda references: list(found)
    )
    return packed, stored


def test_what_is_plain_without_its_references_is_marshalled():
    packed, _ = pack([Pointer(ref(1)), 2.5], {"c": Pointer(ref(2))}, [plain_bytes(7), None])
    assert packed.payload.startswith(MARSHALLED_BEFORE)
    assert packed.deps == [ref(2)]
    assert unpack_arguments(packed.payload, ["of 2"]) == ([7, 2.5], {"c": "of 2"})


def test_a_value_that_is_not_plain_travels_as_it_is_pickled():
    packed, _ = pack([Pointer(ref(1))], {}, [serialize([1, 2]).to_bytes()])
    assert packed.payload.startswith(MARSHALLED_BEFORE)
    assert packed.deps == []
    assert list(packed.embedded) == [ref(1)]
    assert unpack_arguments(packed.payload, []) == ([[1, 2]], {})


def test_a_large_text_beside_a_reference_is_stored():
    packed, stored = pack([Pointer(ref(1)), "x" * 2000], {}, [None])
    assert len(stored) == 1
    assert packed.deps == [ref(1), ref(91)]
    assert len(packed.payload) <= 1000
    assert unpack_arguments(packed.payload, ["of 1", "x" * 2000]) == (["of 1", "x" * 2000], {})


def test_a_name_of_its_own_class_is_pickled():
    assert pack_plain([], {Name.A: 1}, 1000) == b""
    packed, _ = pack([Pointer(ref(1))], {Name.A: 1}, [plain_bytes(7)])
    args, kwargs = unpack_arguments(packed.payload, [])
    assert (args, kwargs) == ([7], {"a": 1})
    assert type(next(iter(kwargs))) is Name
