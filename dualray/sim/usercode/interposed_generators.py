"""Stands in for generators.py where Python's or numpy's generator is laid out in another way than is known there.

Each function of `random` and `numpy.random` is replaced by one that asks whether the caller is user code, and draws
from the fiber's own generator: the same numbers, but a call costs several times as much.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.random import RandomState, mtrand

from dualray.sim.kernel.fibers import Fiber
from dualray.sim.usercode.generators import streams_of
from dualray.sim.usercode.substitutions import Substitution

__all__ = ["InterposedGenerators"]


class InterposedGenerators:
    """Functions that draw for the fiber that calls them. At a switch there is nothing to do."""

    def __init__(self, user_fiber: Callable[[], Fiber | None]) -> None:
        self._user_fiber = user_fiber

    def install(self) -> None:
        """Nothing stands anywhere but the substitutions."""

    def leave(self) -> None:
        """As `install`."""

    def put_back(self) -> None:
        """As `install`."""

    def put_in(self, fiber: Fiber) -> None:
        """As `install`."""

    def substitutions(self) -> list[Substitution]:
        """What is to be replaced."""
        return [*self._of_random(), *self._of_numpy()]

    def _of_random(self) -> list[Substitution]:
        user_fiber = self._user_fiber
        hidden = random._inst  # whose bound methods the module's functions are

        def make(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def draw(*args: Any, **kwargs: Any) -> Any:
                fiber = user_fiber()
                if fiber is None:
                    return original(*args, **kwargs)
                return getattr(streams_of(fiber).python, name)(*args, **kwargs)

            return draw

        return [
            Substitution.of(random, name, make(name, function))
            for name, function in vars(random).items()
            if getattr(function, "__self__", None) is hidden
        ]

    def _of_numpy(self) -> list[Substitution]:
        user_fiber = self._user_fiber
        hidden: RandomState = mtrand._rand

        def generator() -> RandomState:
            fiber = user_fiber()
            return hidden if fiber is None else streams_of(fiber).numpy

        class Singleton(RandomState):
            """Stands for `mtrand._rand`, which libraries fetch and which numpy's own functions look up."""

            def __getattribute__(self, name: str) -> Any:
                return getattr(generator(), name)

        def make(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def draw(*args: Any, **kwargs: Any) -> Any:
                fiber = user_fiber()
                if fiber is None:
                    return original(*args, **kwargs)
                return getattr(streams_of(fiber).numpy, name)(*args, **kwargs)

            return draw

        set_hidden = mtrand.set_bit_generator

        def get_bit_generator() -> Any:
            return generator()._bit_generator

        def set_bit_generator(bitgen: Any) -> None:
            fiber = user_fiber()
            if fiber is None:
                set_hidden(bitgen)
            else:
                streams_of(fiber).numpy = RandomState(bitgen)

        functions = [
            Substitution.of(np.random, "get_bit_generator", get_bit_generator),
            Substitution.of(np.random, "set_bit_generator", set_bit_generator),
            *(
                Substitution.of(np.random, name, make(name, function))
                for name, function in vars(np.random).items()
                if getattr(function, "__self__", None) is hidden
            ),
        ]
        return [
            Substitution(holder=mtrand, name="_rand", replacement=Singleton(0)),
            *functions,
            *(Substitution(holder=mtrand, name=it.name, replacement=it.replacement) for it in functions),
        ]
