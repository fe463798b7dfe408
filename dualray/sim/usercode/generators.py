"""The two generators that all of a process shares, Python's and numpy's: each fiber draws from its own, and the fibers
of an actor's process from the same.

Theory of operation
-------------------
The functions of `random` and `numpy.random` stay what they are, methods in C of one hidden object each, and cost what
they cost elsewhere: a program may draw from them ten million times. What changes is the state in those objects.

While nobody of the simulation has drawn since the last switch, the objects hold what they held before the simulation,
and are *armed*: the C functions through which all draws go are entered by way of a trap. The first draw of a fiber
springs it. The trap puts the fiber's own state into the object, made from the fiber's seed if it is the first at all,
restores the C functions, and draws. When that fiber is suspended, `put_back` keeps its state, restores the other one
and arms the object again. So a fiber that draws nothing pays nothing, not even its seeding, and a fiber that draws pays
two copies of 2.5 kB each time it runs. Who draws while it is armed and is no fiber (the kernel, pytest, another thread)
gets the numbers that it would get without a simulation.

    Python   `_random.Random`: the index and 624 words of the Mersenne Twister follow the head of the object. The traps
             are in the table of methods that its bound and unbound methods share: `random` and `getrandbits`.
    numpy    a `RandomState` keeps a copy of its bit generator's `bitgen_t`: the address of the state and of the four
             functions that draw. The traps stand in that copy.

What reads or writes a state without a draw (`seed`, `getstate`, `get_state`, ...) is replaced by a function that
springs the trap first. The second value of a Gaussian pair, which both objects keep, is put aside with the state; a
fiber that has one finds it when it is resumed, as it is looked for before anything is drawn.

All of this is looked for and tried on objects of its own when the first simulation starts (`find`). Where an
interpreter or a numpy has another layout, `interposed_generators.py` stands in: slower, the same numbers.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable
from functools import cache
from types import FrameType
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.random import MT19937, RandomState, mtrand

from dualray.random_seeds import has_seeded_numpy, has_seeded_random, note_numpy
from dualray.shared.core.serialization import replaced_builtins
from dualray.shared.seeding import stream_seed
from dualray.sim.kernel.fibers import Fiber
from dualray.sim.usercode.substitutions import Substitution

__all__ = ["GlobalGenerators", "Streams", "streams_of"]

WORDS: Final = 624
"""Of the state of a Mersenne Twister; one more says where it stands."""
STATE_BYTES: Final = 4 * (WORDS + 1)
POINTER_BYTES: Final = ctypes.sizeof(ctypes.c_void_p)
_NUMPYS: Final[Any] = mtrand._rand
note_numpy()
_METH_NOARGS: Final = 4
_METH_O: Final = 8
_OBJECT_BYTES: Final = object.__basicsize__
_BITGEN_POINTERS: Final = 5
_GAUSS_BYTES: Final = 16
"""Whether there is a second value, and that."""


class Streams:
    """The generators of one fiber, made when first asked for.

    is_drivers: it is the driver's. The driver draws on from a generator that the program has seeded before the
        simulation (dualray/random_seeds.py).
    saved_python, saved_numpy: the states of the shared generators, while they are not in there.
    torch, tensorflow: what library_draws keeps here.
    """

    __slots__ = (
        "_entropy",
        "_numpy",
        "_python",
        "_seed",
        "is_drivers",
        "saved_numpy",
        "saved_python",
        "tensorflow",
        "torch",
    )

    def __init__(self, seed: bytes, *, is_drivers: bool = False) -> None:
        self._seed, self.is_drivers = seed, is_drivers
        self._python: random.Random | None = None
        self._numpy: RandomState | None = None
        self._entropy: random.Random | None = None
        self.saved_python: tuple[bytes, Any] | None = None
        self.saved_numpy: tuple[Any, bytes] | None = None
        self.torch: Any = None
        self.tensorflow: Any = None

    def seed_of(self, stream: bytes) -> int:
        """What a stream is seeded with."""
        return stream_seed(self._seed, stream)

    @property
    def python(self) -> random.Random:
        """What stands for `random._inst`, where that cannot be shared."""
        if self._python is None:
            self._python = random.Random(self.seed_of(b"random"))
            if self.is_drivers and has_seeded_random():
                self._python.setstate(random._inst.getstate())
        return self._python

    @property
    def numpy(self) -> RandomState:
        """What stands for `numpy.random.mtrand._rand`, where that cannot be shared."""
        if self._numpy is None:
            self._numpy = RandomState(MT19937(self.seed_of(b"numpy")))
            if self.is_drivers and has_seeded_numpy(_NUMPYS._bit_generator):
                self._numpy.set_state(_NUMPYS.get_state())
        return self._numpy

    @numpy.setter
    def numpy(self, generator: RandomState) -> None:
        self._numpy = generator

    @property
    def entropy(self) -> random.Random:
        """What `os.urandom` draws from."""
        if self._entropy is None:
            self._entropy = random.Random(self.seed_of(b"entropy"))
        return self._entropy


def streams_of(fiber: Fiber) -> Streams:
    """A fiber's generators: those of its process, if it is an actor's, as on real processes; else its own."""
    if fiber.streams is None:
        owner: Any = fiber.owner
        shared_seed = getattr(owner, "streams_seed", None)
        if shared_seed is None:
            fiber.streams = Streams(fiber.seed, is_drivers=bool(getattr(owner, "is_driver", False)))
        else:
            if owner.streams is None:
                owner.streams = Streams(shared_seed)
            fiber.streams = owner.streams
    streams: Streams = fiber.streams
    return streams


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _words(address: int, count: int) -> tuple[int, ...]:
    return struct.unpack(f"{count}P", _memory(address, count * POINTER_BYTES))


class NoTrap(Exception):
    """This interpreter, or this numpy, has another layout."""


class _Method:
    """A method in C, which a trap can be put before: its entry in the table of methods of its class."""

    def __init__(self, bound: Any, flags: int, trap: Callable[[int, Any], Any]) -> None:
        table = _words(id(bound) + _OBJECT_BYTES, 1)[0]
        name, function, found_flags, _ = _words(table, 4)
        if ctypes.string_at(name).decode() != bound.__name__ or found_flags & 0xFFFFFFFF != flags:
            raise NoTrap(bound.__name__)
        argument: Any = ctypes.py_object if flags == _METH_O else ctypes.c_void_p
        kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, argument)
        self.original: Any = kind(function)
        self._trap = kind(trap)
        self._place = _memory(table + POINTER_BYTES, POINTER_BYTES)
        self._function = bytes(self._place)
        self._armed = struct.pack("P", ctypes.cast(self._trap, ctypes.c_void_p).value)

    def arm(self) -> None:
        self._place[:] = self._armed

    def disarm(self) -> None:
        self._place[:] = self._function


class PythonsGenerator:
    """`random._inst`, or one like it. `spring` is told of the first draw while it is armed."""

    def __init__(self, generator: random.Random) -> None:
        self.spring: Callable[[], None] = _nobody_draws
        self._generator = generator
        self._state = _memory(id(generator) + _OBJECT_BYTES, STATE_BYTES)
        *words, index = generator.getstate()[1]
        if bytes(self._state) != struct.pack(f"i{WORDS}I", index, *words):
            raise NoTrap("the state of random.Random")
        self._random = _Method(generator.random, _METH_NOARGS, self._first_random)
        self._getrandbits = _Method(generator.getrandbits, _METH_O, self._first_getrandbits)

    def arm(self) -> None:
        self._random.arm()
        self._getrandbits.arm()

    def disarm(self) -> None:
        self._random.disarm()
        self._getrandbits.disarm()

    def save(self) -> tuple[bytes, Any]:
        """The state, and the second value of a Gaussian pair."""
        return bytes(self._state), self._generator.gauss_next  # type: ignore[attr-defined]

    def load(self, saved: tuple[bytes, Any]) -> None:
        self._state[:], self._generator.gauss_next = saved  # type: ignore[attr-defined]

    def _first_random(self, generator: int, nothing: None) -> Any:
        self.spring()
        return self._random.original(generator, nothing)

    def _first_getrandbits(self, generator: int, bits: Any) -> Any:
        self.spring()
        try:
            return self._getrandbits.original(generator, bits)
        except (OverflowError, TypeError, ValueError) as error:
            _raise_in_caller(error)
            return 0


def _raise_in_caller(error: Exception) -> None:
    """Nothing can be raised through a callback of ctypes: the caller's next step raises it."""
    callback = sys._getframe(1)
    caller = callback.f_back
    if caller is None:
        return
    before, before_there, by_opcode = sys.gettrace(), caller.f_trace, caller.f_trace_opcodes

    def trace(frame: FrameType, event: str, arg: Any) -> None:
        if frame is caller:
            sys.settrace(before)
            frame.f_trace, frame.f_trace_opcodes = before_there, by_opcode
            raise error

    caller.f_trace, caller.f_trace_opcodes = trace, True
    sys.settrace(trace)


def _nobody_draws() -> None:
    pass


class NumpysGenerator:
    """`mtrand._rand`, or one like it, on an MT19937. `spring` is told of the first draw while it is armed."""

    def __init__(self, generator: RandomState) -> None:
        self.spring: Callable[[], None] = _nobody_draws
        self._generator = generator
        self.own: Any = generator._bit_generator
        self._state = _state_of(self.own)
        self._place, self._gauss = _places_in(generator, self.own)
        self._functions = bytes(self._place)
        kinds: tuple[Any, ...] = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_double, ctypes.c_uint64)
        self._traps = [
            ctypes.CFUNCTYPE(kind, ctypes.c_void_p)(self._first(ctypes.PYFUNCTYPE(kind, ctypes.c_void_p), number))
            for number, kind in enumerate(kinds, start=1)
        ]
        state, *_ = struct.unpack("5P", self._functions)
        traps = [ctypes.cast(trap, ctypes.c_void_p).value for trap in self._traps]
        self._armed = struct.pack("5P", state, *traps)

    def _first(self, kind: Any, number: int) -> Callable[[int], Any]:
        def draw(state: int) -> Any:
            self.spring()
            found = struct.unpack("5P", self._place)
            if bytes(self._place) == self._armed:  # not by a fiber
                found = struct.unpack("5P", self._functions)
            return kind(found[number])(found[0])

        return draw

    def arm(self) -> None:
        self._place[:] = self._armed

    def disarm(self) -> None:
        self._place[:] = self._functions

    def save(self) -> tuple[Any, bytes]:
        """The state, or a bit generator that has been set; and the second value of a Gaussian pair."""
        bit_generator = self._generator._bit_generator
        gauss = bytes(self._gauss)
        if bit_generator is not self.own:
            self._set(self.own)
            return bit_generator, gauss
        return bytes(self._state), gauss

    def load(self, saved: tuple[Any, bytes]) -> None:
        state, gauss = saved
        if isinstance(state, bytes):
            self._state[:] = state
        else:
            self._set(state)
        self._gauss[:] = gauss

    def _set(self, bit_generator: Any) -> None:
        stands, mtrand._rand = mtrand._rand, self._generator
        try:
            _set_bit_generator(bit_generator)
        finally:
            mtrand._rand = stands


_set_bit_generator: Final = mtrand.set_bit_generator
_NO_GAUSS: Final = bytes(_GAUSS_BYTES)


def _state_of(bit_generator: Any) -> memoryview:
    state = _memory(bit_generator.ctypes.state_address, STATE_BYTES)
    said: Any = bit_generator.state["state"]
    if bytes(state) != struct.pack(f"{WORDS}Ii", *said["key"].tolist(), said["pos"]):
        raise NoTrap("the state of MT19937")
    return state


def _places_in(generator: RandomState, bit_generator: Any) -> tuple[memoryview, memoryview]:
    """Where an object keeps its copy of the functions that draw, and the second value of a Gaussian pair."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    given = _words(get_pointer(bit_generator.capsule, b"BitGenerator"), _BITGEN_POINTERS)
    count = RandomState.__basicsize__ // POINTER_BYTES
    words = _words(id(generator), count)
    for at in range(count - _BITGEN_POINTERS):
        if words[at : at + _BITGEN_POINTERS] == given:
            place = id(generator) + at * POINTER_BYTES
            gauss = id(generator) + (words.index(place) + 1) * POINTER_BYTES if place in words else 0
            if gauss and gauss + _GAUSS_BYTES <= id(generator) + RandomState.__basicsize__:
                return _memory(place, _BITGEN_POINTERS * POINTER_BYTES), _memory(gauss, _GAUSS_BYTES)
    raise NoTrap("the layout of RandomState")


class Shared(NamedTuple):
    """What was found in this process."""

    python: PythonsGenerator
    numpy: NumpysGenerator


@cache
def find() -> Shared | None:
    """The two generators of this process, with traps that have been tried; None: they are not laid out as is known."""
    try:
        _try_python(random.Random(5))
        _try_numpy(RandomState(MT19937(5)))
        return Shared(PythonsGenerator(random._inst), NumpysGenerator(mtrand._rand))
    except (AttributeError, KeyError, NoTrap, TypeError, ValueError):
        return None


def _try_python(generator: random.Random) -> None:
    found = PythonsGenerator(generator)
    sprung: list[int] = []

    def spring() -> None:
        found.disarm()
        sprung.append(1)
        found.load(other)

    found.spring = spring
    generator.gauss(0, 1)
    other = found.save()
    expected = [generator.gauss(0, 1), generator.random(), generator.getrandbits(70)]
    for draw in (generator.random, lambda: generator.getrandbits(7), lambda: random.Random.random(generator)):
        generator.random()
        generator.gauss_next = None  # type: ignore[attr-defined]
        found.arm()
        try:
            draw()
        finally:
            found.disarm()
        found.load(other)
        if [generator.gauss(0, 1), generator.random(), generator.getrandbits(70)] != expected:
            raise NoTrap("what random.Random draws")
    if len(sprung) != 3:
        raise NoTrap("the methods of random.Random")


def _try_numpy(generator: RandomState) -> None:
    found = NumpysGenerator(generator)
    sprung: list[int] = []

    def spring() -> None:
        found.disarm()
        sprung.append(1)
        found.load(other)

    found.spring = spring
    generator.normal()
    other = found.save()
    if struct.unpack("i", other[1][:4]) != (1,):
        raise NoTrap(
            "a numpy generator does not store the second number of a random pair at the memory address that dualray "
            "expects"
        )
    draws: list[Callable[[], Any]] = [
        generator.random_sample,
        lambda: generator.randint(1000),
        lambda: generator.randint(2**40, dtype=np.int64),
        lambda: generator.bytes(4),
    ]
    for draw in draws:
        found.load(other)
        expected = draw(), generator.normal(), generator.random_sample()
        generator.random_sample()
        found.arm()
        try:
            drawn = draw()
        finally:
            found.disarm()
        if (drawn, generator.normal(), generator.random_sample()) != expected:
            raise NoTrap("what RandomState draws")
    if len(sprung) != len(draws):
        raise NoTrap("the functions of RandomState")


class GlobalGenerators:
    """Gives each fiber its own state of the generators that a process shares, from `install` to `leave`.

    on_drawn: called when the state of a fiber has been put in: whoever suspends it has to call `put_back`.
    """

    def __init__(self, shared: Shared, user_fiber: Callable[[], Fiber | None], on_drawn: Callable[[], None]) -> None:
        self._python, self._numpy = shared
        self._user_fiber, self._on_drawn = user_fiber, on_drawn
        self._python_of: Streams | None = None
        """Whose state is in Python's generator; None: nobody's of the simulation, and it is armed."""
        self._numpy_of: Streams | None = None
        self._outside_python: tuple[bytes, Any] = (b"", None)
        self._outside_numpy: tuple[Any, bytes] = (b"", b"")
        self._gauss_before: Any = None
        """The second value of a pair of whoever draws without a simulation: theirs again when it ends."""
        self._numpy_before: tuple[Any, bytes] = (b"", _NO_GAUSS)
        self._is_installed = False
        self._names = _names()

    def install(self) -> None:
        """From now on fibers draw from their own."""
        replaced_builtins.update(self._names)
        state, gauss = self._python.save()
        self._python.load((state, None))
        self._numpy_before = self._numpy.save()
        if isinstance(self._numpy_before[0], bytes):
            self._numpy.load((self._numpy_before[0], _NO_GAUSS))
        self._gauss_before = gauss
        self._python.spring, self._numpy.spring = self._claim_python, self._claim_numpy
        self._is_installed = True
        self._python.arm()
        self._numpy.arm()

    def leave(self) -> None:
        """What was there before is there again. Idempotent."""
        if not self._is_installed:
            return
        self.put_back()
        self._is_installed = False
        self._python.disarm()
        self._numpy.disarm()
        self._python.load((self._python.save()[0], self._gauss_before))
        state, gauss = self._numpy_before
        self._numpy.load((self._numpy.save()[0] if isinstance(state, bytes) else state, gauss))

    def put_back(self) -> None:
        """The fiber that has drawn is suspended."""
        if self._python_of is not None:
            self._python_of.saved_python, self._python_of = self._python.save(), None
            self._python.load(self._outside_python)
            self._python.arm()
        if self._numpy_of is not None:
            self._numpy_of.saved_numpy, self._numpy_of = self._numpy.save(), None
            self._numpy.load(self._outside_numpy)
            self._numpy.arm()

    def put_in(self, fiber: Fiber) -> None:
        """A fiber that has streams runs. The second value of a pair is looked for before anything is drawn."""
        streams: Streams | None = fiber.streams
        if streams is None:
            return
        if streams.saved_python is not None and streams.saved_python[1] is not None:
            self._put_in_python(streams)
        if streams.saved_numpy is not None and streams.saved_numpy[1] != _NO_GAUSS:
            self._put_in_numpy(streams)

    def _claim_python(self) -> None:
        """Whoever draws: if it is a fiber, it finds its own state in Python's generator."""
        if self._python_of is None and self._is_installed and (fiber := self._user_fiber()) is not None:
            self._put_in_python(streams_of(fiber))

    def _claim_numpy(self) -> None:
        if self._numpy_of is None and self._is_installed and (fiber := self._user_fiber()) is not None:
            self._put_in_numpy(streams_of(fiber))

    def _put_in_python(self, streams: Streams) -> None:
        self._outside_python = self._python.save()
        self._python.disarm()
        if streams.saved_python is None and streams.is_drivers and has_seeded_random():
            streams.saved_python = self._outside_python[0], None
        elif streams.saved_python is None:
            made = random.Random(streams.seed_of(b"random"))
            streams.saved_python = bytes(_memory(id(made) + _OBJECT_BYTES, STATE_BYTES)), None
        self._python.load(streams.saved_python)
        self._python_of = streams
        self._on_drawn()

    def _put_in_numpy(self, streams: Streams) -> None:
        self._outside_numpy = self._numpy.save()
        self._numpy.disarm()
        if streams.saved_numpy is None and streams.is_drivers and has_seeded_numpy(self._numpy.own):
            streams.saved_numpy = self._outside_numpy[0], _NO_GAUSS
        elif streams.saved_numpy is None:
            made = MT19937(streams.seed_of(b"numpy"))
            streams.saved_numpy = bytes(_memory(made.ctypes.state_address, STATE_BYTES)), _NO_GAUSS
        self._numpy.load(streams.saved_numpy)
        self._numpy_of = streams
        self._on_drawn()

    # -- what reads or writes a state without a draw --------------------------------------------------------

    def substitutions(self) -> list[Substitution]:
        """What springs the trap before it does its work."""
        return [*self._of_random(), *self._of_numpy()]

    def _of_random(self) -> list[Substitution]:
        def after_claim(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                self._claim_python()
                return original(*args, **kwargs)

            return call

        def seed(a: Any = None, version: int = 2) -> None:
            fiber = self._user_fiber()
            if a is None and fiber is not None:
                a = streams_of(fiber).entropy.getrandbits(256)
            self._claim_python()
            seed_hidden(a, version)

        seed_hidden = random.seed
        return [
            Substitution.of(random, "seed", seed),
            *(Substitution.of(random, name, after_claim(getattr(random, name))) for name in ("getstate", "setstate")),
        ]

    def _of_numpy(self) -> list[Substitution]:
        hidden: RandomState = mtrand._rand
        claim = self._claim_numpy

        class Singleton(RandomState):
            """Stands for `mtrand._rand`, which libraries fetch and which numpy's own functions look up."""

            def __getattribute__(self, name: str) -> Any:
                claim()
                return getattr(hidden, name)

        def after_claim(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                claim()
                return original(*args, **kwargs)

            return call

        def set_bit_generator(bitgen: Any) -> None:
            claim()
            self._numpy._set(bitgen)

        def get_bit_generator() -> Any:
            claim()
            return hidden._bit_generator

        names = ("get_state", "set_state")
        functions = [
            Substitution.of(np.random, "get_bit_generator", get_bit_generator),
            Substitution.of(np.random, "set_bit_generator", set_bit_generator),
            *(Substitution.of(np.random, name, after_claim(getattr(np.random, name))) for name in names),
        ]
        return [
            Substitution(holder=mtrand, name="_rand", replacement=Singleton(0)),
            *functions,
            *(Substitution(holder=mtrand, name=it.name, replacement=it.replacement) for it in functions),
        ]


@cache
def _names() -> dict[int, tuple[str, str]]:
    """Under which names the methods of the two objects are pickled, by their identity."""
    found: dict[int, tuple[str, str]] = {}
    for module, hidden in ((random, random._inst), (np.random, mtrand._rand)):
        for name, function in vars(module).items():
            if getattr(function, "__self__", None) is hidden:
                found.setdefault(id(function), (module.__name__, name))
    return found
