"""Whether the program has seeded the global generators of `random` and numpy since it imported dualray.

A simulation seeds the driver's generators with its own seed, except those that the program has seeded: these give the
same numbers in all modes. An unseeded generator still has the state from the import of dualray, or a state that draws
lead to from there. Both libraries use the Mersenne Twister, whose 624 words all change after each 624 draws of 32 bits.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any, Final

_GENERATOR: Final[Any] = random._inst
_WORDS: Final = 624
_FOLLOWING_MAX: Final = 500
"""A program that has drawn more words than 500 x 624 counts as one that has seeded the generator."""


class _Noted:
    """The 624 words of each unseeded generator. None for numpy's, if numpy was not imported or was seeded before."""

    python: tuple[int, ...] = ()
    numpy: Any = None


def begin() -> None:
    """dualray is imported: so far, the program counts as one that has seeded nothing."""
    _note_python()
    os.register_at_fork(after_in_child=_note_python)  # where `random` has seeded itself anew
    note_numpy()


def forget() -> None:
    """A test begins, in which seeds of earlier tests do not count: each test can be repeated alone."""
    _note_python()
    generator = _numpys_generator()
    _Noted.numpy = None if generator is None else _numpys_words(generator)


def note_numpy() -> None:
    """Keep the state of numpy's generator, if numpy is imported and its generator still has the seed of the system."""
    generator = _numpys_generator()
    if generator is not None and _Noted.numpy is None and not _has_lost_its_entropy(generator):
        _Noted.numpy = _numpys_words(generator)


def has_seeded_random() -> bool:
    """Whether the program has called `random.seed` or `random.setstate`."""
    words = _pythons_words()
    if words == _Noted.python:
        return False
    follower = random.Random(0)
    follower.setstate((3, (*_Noted.python, _WORDS), None))
    for _ in range(_FOLLOWING_MAX):
        follower.getrandbits(32 * _WORDS)
        if follower.getstate()[1][:_WORDS] == words:
            return False
    return True


def has_seeded_numpy(generator: Any) -> bool:
    """Whether the program has called `numpy.random.seed` or `numpy.random.set_state`.

    generator: the MT19937 behind numpy's functions.
    """
    if _Noted.numpy is None:
        return _has_lost_its_entropy(generator)
    words = _numpys_words(generator)
    follower = type(generator)(0)
    follower.state = {"bit_generator": "MT19937", "state": {"key": _Noted.numpy, "pos": _WORDS}}
    for _ in range(_FOLLOWING_MAX):
        if (_numpys_words(follower) == words).all():
            return False
        follower.random_raw(_WORDS, output=False)
    return True


def _note_python() -> None:
    _Noted.python = _pythons_words()


def _pythons_words() -> tuple[int, ...]:
    words: tuple[int, ...] = _GENERATOR.getstate()[1][:_WORDS]
    return words


def _numpys_generator() -> Any:
    """The generator behind numpy's functions, if numpy is imported and the program has set none of another kind."""
    mtrand = sys.modules.get("numpy.random.mtrand")
    generator = None if mtrand is None else mtrand._rand._bit_generator
    return generator if type(generator).__name__ == "MT19937" else None


def _has_lost_its_entropy(generator: Any) -> bool:
    """A generator of numpy that is seeded forgets the entropy that it was made with."""
    return getattr(generator, "_seed_seq", generator) is None


def _numpys_words(generator: Any) -> Any:
    return generator.state["state"]["key"]
