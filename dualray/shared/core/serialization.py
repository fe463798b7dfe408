"""Values as bytes, and back: pickle protocol 5 with out-of-band buffers, through cloudpickle.

How a pickled value is laid out in memory is in layout.py. Recursive and shared structures keep their identity, as
pickle keeps it.

References among the values (`Reference`) are noted while pickling, so that the core knows what a value refers to.

Exceptions come back as they were, whatever their constructors take: pickle would call the class with `args`, which many
constructors refuse, and others take for something else.
"""

from __future__ import annotations

import contextlib
import copyreg
import io
import marshal
import pickle
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType
from typing import Any, Final

import cloudpickle
import cloudpickle.cloudpickle as _pickler
import numpy as np

from dualray.exceptions import builtin_base, rays_words, serialization_error
from dualray.shared.core.layout import (
    MARSHALLED_BEFORE,
    MARSHALLED_START,
    NO_BUFFERS_BEFORE,
    PLAIN_TYPES,
    Serialized,
    array_forms,
)
from dualray.shared.core.pickled_names import keep_name
from dualray.shared.handles import Reference, Sized
from dualray.shared.model.specs import Ref

_CULPRIT_DEPTH_MAX = 8
"""How deep the search for what cannot be pickled goes."""

_PARTS_LOOKED_AT = 1000
"""Parts of a value, after which looking for what is not plain costs more than treating it as not plain."""
_EMPTY_CELL = CellType()
"""Of a variable that has not been set yet; two empty cells are equal."""


_codes: weakref.WeakValueDictionary[bytes, CodeType] = weakref.WeakValueDictionary()
_directories: set[bytes] = set()
"""Absolute ones, of the files whose code this process has pickled."""


def size_without_directories(pickled: bytes) -> int:
    """Bytes of what this process has pickled, without the absolute directories of its files.

    A simulation counts these. Else the times of a program would depend on the directory in which it lies, and a seed
    that fails on one machine might pass on another one.
    """
    found = sorted((each for each in _directories if each in pickled), key=len, reverse=True)
    if not found:
        return len(pickled)
    size = _size_without(found, pickled)
    for head in _LONG_HEAD.finditer(pickled):
        length = int.from_bytes(head[1], "little")
        content = pickled[head.end() : head.end() + length]
        if length > _SHORT_BYTES_MAX >= _size_without(found, content):
            size -= 3  # a short one has a length of one byte
    return size


_SHORT_BYTES_MAX: Final = 255
_LONG_HEAD: Final = re.compile(rb"[XB](..)\0\0", re.DOTALL)
"""How pickle begins a string (X) or bytes (B) of more than _SHORT_BYTES_MAX, and of less than 65,536."""


def note_directory_of(file: str) -> None:
    """Let the directory of a file with code, if its path is absolute, count for nothing in sizes from now on."""
    if file.startswith("/"):
        _directories.add(file[: file.rindex("/") + 1].encode(errors="surrogatepass"))


def _size_without(directories: list[bytes], data: bytes) -> int:
    for directory in directories:
        data = data.replace(directory, b"")
    return len(data)


def _reduce_code(code: CodeType) -> tuple[Any, ...]:
    """A code object is a pickle in the pickle: equal ones have equal bytes.

    What an object holds twice, pickle writes once, so bytes depend on who shares what. A function shares its docstring
    and its file's name with its code, but not with the equal code of another worker that `_one_code` has given it: were
    they one pickle, a function would have another identity in the second simulation of a process than in the first.
    """
    note_directory_of(code.co_filename)
    _, fields = _pickler._code_reduce(code)
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = {CodeType: _reduce_code}
    try:
        pickler.dump(tuple(map(_in_order, fields)))
    except Exception:  # noqa: BLE001 - somebody has made this code, with constants that no compiler makes
        return CodeType, fields
    return _one_code, (file.getvalue(),)


def _in_order(constant: Any) -> Any:
    """Sets, which the compiler makes out of `in {"a", "b"}`, iterate in an order that PYTHONHASHSEED decides."""
    if type(constant) is frozenset:
        return _Sorted(constant)
    return tuple(map(_in_order, constant)) if type(constant) is tuple else constant


class _Sorted:
    """Stands in a pickle for a set of constants."""

    def __init__(self, constants: frozenset[Any]) -> None:
        self._constants = sorted(constants, key=repr)

    def __reduce__(self) -> tuple[Any, ...]:
        return frozenset, (self._constants,)


def _one_code(data: bytes) -> CodeType:
    """The code object of these bytes: in a process, always the same. Workers of a simulation share a process, and
    profilers know a function by its code."""
    code = _codes.get(data)
    return _codes.setdefault(data, CodeType(*pickle.loads(data))) if code is None else code


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle ships no types
    def __init__(
        self, file: io.BytesIO, refs: list[Ref], buffer_callback: Callable[[pickle.PickleBuffer], Any]
    ) -> None:
        # A dict, since pickle asks for nearly each object: cloudpickle's ChainMap takes longer than the object itself.
        usual = cloudpickle.Pickler._dispatch_table
        self.dispatch_table = {**copyreg.dispatch_table, **usual, CodeType: _reduce_code}
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._refs = refs

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Reference):
            if obj.is_counted:
                self._refs.append(obj.ref)
            return obj._reduced()
        registered = _registered.get(type(obj))
        if registered is not None:
            serializer, deserializer = registered
            return deserializer, (serializer(obj),)
        if isinstance(obj, BaseException) and has_default_reduce(type(obj)):
            return reduce_exception(obj)
        if isinstance(obj, type):
            if not _pickler._should_pickle_by_reference(obj):
                if (named := NAMING.reduce(obj)) is not None:
                    return named
                _name_class(obj)
                if not obj.__flags__ & _IMMUTABLE:
                    _share_module_name(obj)
                return _with_line_last(super().reducer_override(obj))
            if type(obj) in copyreg.dispatch_table and NAMING.is_everybodys(obj):
                return obj.__qualname__
        elif type(obj) is FunctionType:
            if (named := NAMING.reduce(obj)) is not None:
                return named
            _share_module_name(obj)
        else:
            is_builtin = type(obj) in (BuiltinFunctionType, MethodType)
            if is_builtin and (place := replaced_builtins.get(id(obj))) is not None:
                return _stands_at, place
            return NotImplemented  # cloudpickle makes functions and classes alone
        return super().reducer_override(obj)


_registered: dict[type[Any], tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
"""Of classes that users have serializers for: serializer and deserializer. Of this process, as in Ray."""

replaced_builtins: dict[int, tuple[str, str]] = {}
"""Of functions in C in whose places others stand in this process, by identity: the module and the name."""


class Naming:
    """What is pickled by name though this process has another object there. In a simulation, where many processes are
    one, it has come from another one's module.

    reduce: how such a function or class is pickled; None: as usual.
    is_everybodys: whether all processes have this class, so that its name is enough though `copyreg` has a function
        that would make it anew.
    """

    def __init__(self) -> None:
        self.reduce: Callable[[Any], tuple[Any, ...] | None] = as_usual
        self.is_everybodys: Callable[[type[Any]], bool] = is_of_one_process


def as_usual(value: Any) -> None:
    """All are pickled as usual."""


def is_of_one_process(_value: type[Any]) -> bool:
    """Processes do not share classes that were made while they ran."""
    return False


NAMING: Final = Naming()


def _stands_at(module: str, name: str) -> Any:
    return getattr(sys.modules[module], name)


_NEVER_ASKED = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple, type, type(None))
"""Classes whose instances pickle writes without asking anybody."""


def is_asked(cls: type[Any]) -> bool:
    """Whether pickle asks how the instances of a class are pickled."""
    return cls not in _NEVER_ASKED


def register(cls: type[Any], serializer: Callable[[Any], Any], deserializer: Callable[[Any], Any]) -> None:
    """Pickle instances of exactly this class as `deserializer(serializer(instance))`.

    Raises:
        TypeError: pickle does not ask how the class is pickled.
    """
    if not is_asked(cls):
        raise TypeError(
            f"Python always pickles {cls.__name__} in its own way, so register a serializer for a class of your "
            f"own that wraps {cls.__name__}"
        )
    _registered[cls] = serializer, deserializer


def deregister(cls: type[Any]) -> None:
    """Pickle instances of the class as before."""
    _registered.pop(cls, None)


_IMMUTABLE = 1 << 8
"""Py_TPFLAGS_IMMUTABLETYPE, of classes that are not written in Python."""

_STATE: Final = 2
"""Where the state stands in what an object is reduced to."""
_LINE: Final = "__firstlineno__"

_named_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def _name_class(cls: type) -> None:
    """Give a class that is pickled by value the name by which cloudpickle knows it again, and see that no other has it.

    cloudpickle draws it with uuid4, which sim mode seeds: in the second run of one process it draws the same again, and
    a class would come back as another one.
    """
    names = _pickler._DYNAMIC_CLASS_TRACKER_BY_CLASS
    while cls not in names:
        name = _pickler._get_or_create_tracker_id(cls)
        other = _named_classes.get(name)
        if other is None:
            _named_classes[name] = cls
        else:
            _pickler._DYNAMIC_CLASS_TRACKER_BY_ID[name] = other
            del names[cls]


def _with_line_last(reduced: Any) -> Any:
    """What a class is reduced to, with the line of its definition (Python 3.13) behind all else that is set.

    To set `__module__` of a class takes its `__firstlineno__` away: so a class that comes back to its own process would
    lose it, and be pickled as other bytes.
    """
    if isinstance(reduced, tuple) and len(reduced) > _STATE and isinstance(reduced[_STATE], tuple):
        attributes = reduced[_STATE][0]
        if isinstance(attributes, dict) and _LINE in attributes:
            attributes[_LINE] = attributes.pop(_LINE)
    return reduced


def _share_module_name(target: Any) -> None:
    """Have a function or class hold its module's name as all others of the module do.

    What is held twice is written once (see `_reduce_code`). A class that is pickled by value shares the name with what
    it uses of its module and is pickled by name; but when it comes back to its own process, as it does in a simulation,
    cloudpickle gives it all that it is made of anew, and so another name: it would have another identity from then on.
    """
    name = getattr(sys.modules.get(target.__module__), "__name__", None)
    if name is not target.__module__ and name == target.__module__:
        line = vars(target).get(_LINE)
        target.__module__ = name
        if line is not None:  # which is taken away
            setattr(target, _LINE, line)
        if isinstance(target, FunctionType) and target.__globals__.get("__name__") == name:
            target.__globals__["__name__"] = name


def has_default_reduce(cls: type[BaseException]) -> bool:
    """Whether neither the class nor any base of it says how it is pickled, other than those of Python itself."""
    definers = (base for base in cls.__mro__ if "__reduce__" in vars(base) or "__reduce_ex__" in vars(base))
    return next(definers).__module__ == "builtins"


def reduce_exception(error: BaseException) -> tuple[Any, ...]:
    """How an exception is pickled, whatever its constructor takes."""
    cls = type(error)
    reduced: Any = error.__reduce__()
    args, *state = reduced[1:]
    slots: list[str] = copyreg._slotnames(cls)  # type: ignore[attr-defined]  # what pickle itself uses; the stub lacks it
    attributes = {name: getattr(error, name) for name in slots if hasattr(error, name)}
    return _revive_exception, (cls, args), attributes | (state[0] if state else {}) or None


def _revive_exception(cls: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """An exception with the state that Python's own base keeps; its own constructor must not run a second time."""
    base = builtin_base(cls)
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)
    return error


def serialize(value: Any, what: str = "the value", *about: object) -> Serialized:
    """Pickle a value; `what`, formatted with `about`, names it in the error.

    Raises:
        SerializationError: the value cannot be pickled; the message says which part, as far as that can be told.
    """
    if type(value) in PLAIN_TYPES:
        return Serialized(pickle.dumps(value, protocol=5), (), ())
    if type(value) is Sized:
        serialized = serialize(value.value, what, *about)
        serialized.size_bytes = max(serialized.size_bytes, value.size_bytes)
        return serialized
    if type(value) is np.ndarray and (of_array := _serialize_array(value)) is not None:
        return of_array
    refs: list[Ref] = []
    buffers: list[memoryview] = []
    file = io.BytesIO()

    def keep_out_of_band(buffer: pickle.PickleBuffer) -> bool:
        try:
            buffers.append(buffer.raw())
        except BufferError:  # not contiguous: pickle copies it into the stream
            return True
        return False

    if _is_plain(value):
        return Serialized(pickle.dumps(value, protocol=5, buffer_callback=keep_out_of_band), buffers, ())
    try:
        _Pickler(file, refs, keep_out_of_band).dump(value)
    except Exception as error:
        what = what.format(*about) if about else what
        said = f"{_path_to_culprit(value, what)} cannot be pickled: {in_words(error)}"
        words = rays_words()
        raise serialization_error(said if words is None else words.unpicklable(what, value, said), error) from error
    return Serialized(file.getvalue(), buffers, tuple(dict.fromkeys(refs)))


def _serialize_array(array: np.ndarray[Any, np.dtype[Any]]) -> Serialized | None:
    """`serialize` of an array of numbers, in C's order without gaps; None: it is another one. Beside its bytes, the
    pickle of such an array says nothing but type and shape, and whether it may be written."""
    dtype, flags = array.dtype, array.flags
    if dtype.kind not in _NUMBERS or dtype.metadata or not flags.c_contiguous or np.ndarray in _registered:
        return None
    key = (dtype, array.shape, flags.writeable)
    pickled = _array_pickles.get(key)
    if pickled is None:
        if len(_array_pickles) >= _ARRAY_PICKLES_MAX:
            _array_pickles.clear()
            array_forms.clear()
        pickled = _array_pickles[key] = pickle.dumps(array, protocol=5, buffer_callback=lambda buffer: False)
        if array.size:
            array_forms[pickled] = dtype, array.shape
    # numpy's stub lacks the buffer protocol on 3.11
    return Serialized(pickled, (pickle.PickleBuffer(array).raw(),), ())  # type: ignore[arg-type]


_NUMBERS = frozenset("biufc")
_ARRAY_PICKLES_MAX = 256
_array_pickles: dict[tuple[np.dtype[Any], tuple[int, ...], bool], bytes] = {}


def _is_plain(value: Any) -> bool:
    """Whether C's pickler alone is enough: plain values, arrays, lists, tuples and dicts, and not too many of them."""
    seen = 0
    todo = [value]
    parts: Collection[Any]
    while todo:
        container = todo.pop()
        if type(container) is dict:
            todo.extend([part for part in container if type(part) not in PLAIN_TYPES])
            parts = container.values()
        elif type(container) is list or type(container) is tuple:
            parts = container
        elif type(container) is np.ndarray and not container.dtype.hasobject and np.ndarray not in _registered:
            continue
        else:
            return False
        seen += 1 + len(parts)
        if seen > _PARTS_LOOKED_AT:
            return False
        todo.extend([part for part in parts if type(part) not in PLAIN_TYPES])
    return True


def class_name(error: BaseException) -> str:
    """The name of an error's class, without any code of the class."""
    return str(_CLASS_NAME.__get__(type(error)))


_CLASS_NAME: Any = vars(type)["__name__"]


def in_words(error: BaseException) -> str:
    """An error's class and text; the class alone if the text cannot be had."""
    try:
        return f"{class_name(error)}: {error}"
    except Exception:  # noqa: BLE001 - it is the user's code
        return class_name(error)


def _path_to_culprit(value: Any, path: str) -> str:
    culprit = next(_culprits(value, path, (), _CULPRIT_DEPTH_MAX))
    return f"{culprit.path} (a {type(culprit.value).__name__})"


@dataclass(frozen=True, slots=True)
class Culprit:
    """Something that cannot be pickled by itself: `path` leads there, `parent` is what it is part of."""

    value: Any
    path: str
    parent: Any
    reason: str


def find_culprits(value: Any, path: str, *, depth_max: int) -> list[Culprit]:
    """The innermost parts of a value that cannot be pickled, at most `depth_max` deep; none when it can be."""
    if _why_not_pickled(value) is None:
        return []
    return list(_culprits(value, path, (), depth_max))


def _culprits(value: Any, path: str, outer: tuple[Any, ...], depth_max: int) -> Iterator[Culprit]:
    """Follow containers, attributes, closures and globals to the innermost parts that cannot be pickled by themselves.
    There is always at least one: the value itself, when no part of it is to blame."""
    within = (*outer, value)
    is_innermost = True
    for name, part in _parts(value, path) if len(within) <= depth_max else ():
        if not any(part is seen for seen in within) and _why_not_pickled(part) is not None:
            is_innermost = False
            yield from _culprits(part, name, within, depth_max)
    if is_innermost:
        yield Culprit(value, path, outer[-1] if outer else None, _why_not_pickled(value) or "its pickle method fails")


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"{path}[{index}]", part) for index, part in enumerate(value))
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a variable that has no value yet
                yield f"{path}, closure variable {name!r}", cell.cell_contents
        for name in _global_names(value.__code__):
            if name in value.__globals__:
                yield f"{path}, global variable {name!r}", value.__globals__[name]
    elif isinstance(value, type):
        yield from ((f"{path}.{name}", part) for name, part in vars(value).items() if not name.startswith("__"))
        yield from ((f"{path}.{name}", part) for name, part in vars(value).items() if isinstance(part, FunctionType))
    elif hasattr(value, "__dict__"):
        yield from ((f"{path}.{name}", part) for name, part in vars(value).items())


def _global_names(code: CodeType) -> list[str]:
    """The names of globals that a function and those defined in it may use."""
    inner = (_global_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return list(dict.fromkeys([*code.co_names, *(name for names in inner for name in names)]))


def _why_not_pickled(value: Any) -> str | None:
    try:
        _Pickler(io.BytesIO(), [], lambda buffer: True).dump(value)
    except Exception as error:  # noqa: BLE001 - pickling runs the user's code
        return in_words(error)
    return None


# ---- Values that pickle to the same bytes and back, whoever does it ------------------------------------------------

NOT_PLAIN = object()
"""What `learn_plain` says of a value that is not plain, or not short."""

plain_values: dict[bytes, Any] = {}
"""Of what was read of late: plain values by their bytes, and NOT_PLAIN of other bytes."""

_PLAIN_BYTES_MAX = 128
_PLAIN_VALUES_MAX = 4096
_PICKLE_START = b"\x80\x05"  # PROTO 5
_FRAME = 0x95
_FIXED_BYTES = {"K": 1, "M": 2, "J": 4, "G": 8, "N": 0, "\x88": 0, "\x89": 0}
_ALONE_BYTES = {ord(opcode): 2 + count for opcode, count in _FIXED_BYTES.items()}
"""How long a pickle is, behind its beginning, that consists of one value of fixed size: int, float, None, bool."""
_COUNTED = {0x8A: 3, 0x8C: 4, ord("C"): 4}
"""How long it is beyond the bytes of an int, a str or bytes: opcode, count, their place in the memo, STOP."""


def learn_plain(data: bytes) -> Any:
    """The number, None, short text or short bytes that `data` is, serialized; NOT_PLAIN of anything else, of which
    nothing is unpickled. What was found is noted in `plain_values`."""
    value = NOT_PLAIN
    if len(data) <= _PLAIN_BYTES_MAX and data.startswith(MARSHALLED_BEFORE):
        found = marshal.loads(data[MARSHALLED_START:])
        value = found if type(found) in PLAIN_TYPES else NOT_PLAIN
    elif len(data) <= _PLAIN_BYTES_MAX and data.startswith(NO_BUFFERS_BEFORE) and data[12:14] == _PICKLE_START:
        start = 23 if data[14] == _FRAME else 14  # frames have a length of 8 bytes
        opcode, length = data[start], len(data) - start
        wanted = _ALONE_BYTES.get(opcode)
        if wanted is None and (more := _COUNTED.get(opcode)) is not None:
            wanted = more + data[start + 1]
        if length == wanted:
            value = pickle.loads(data[12:])
    if len(plain_values) >= _PLAIN_VALUES_MAX:
        plain_values.clear()
    plain_values[data] = value
    return value


keep_name("dualray.shared.serialization", _one_code, _revive_exception, _stands_at)
