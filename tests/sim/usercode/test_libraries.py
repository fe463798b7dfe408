"""Libraries that are made in unusual ways."""

from __future__ import annotations

import sys
import types

import dualray as ray


def test_what_says_that_it_is_a_module_and_is_none(monkeypatch):
    """As libraries that cffi has compiled do, cryptography's among them."""

    class Library:
        __slots__ = ()
        __class__ = property(lambda self: types.ModuleType)

    assert isinstance(Library(), types.ModuleType)
    monkeypatch.setitem(sys.modules, "library_of_cffi", Library())
    ray.init(mode="sim")
    ray.shutdown()
