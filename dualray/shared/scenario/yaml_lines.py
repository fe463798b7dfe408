"""YAML whose mappings and lists remember in which line each of their entries stands.

PyYAML reads YAML 1.1, where `no` is False, `1:30` is 90 and `1e3` is a text. Here the plain words are those of YAML
1.2, as editors and other tools read them. A key that stands twice in a mapping is an error.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any, Final, cast

import yaml

__all__ = ["DuplicateKeyError", "YamlList", "YamlMapping", "dump_yaml", "load_all_yaml", "load_yaml"]


class YamlMapping(dict[Any, Any]):
    """A mapping of a file.

    Attributes:
        lines: the line of each key, from 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: dict[Any, int] = {}


class YamlList(list[Any]):
    """A list of a file.

    Attributes:
        lines: the line of each item, from 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[int] = []


class DuplicateKeyError(yaml.MarkedYAMLError):
    """A key stands in a mapping for a second time.

    Attributes:
        key: the key.
    """

    def __init__(self, key: Any, mark: yaml.Mark) -> None:
        super().__init__(problem=f"key {key!r} is given a second time", problem_mark=mark)
        self.key = key


def load_yaml(text: str, *, is_lenient: bool = False) -> Any:
    """The one document of a text.

    Args:
        is_lenient: of a key that stands twice, the last counts.

    Raises:
        DuplicateKeyError: a key stands twice.
        yaml.YAMLError: the text is no YAML, or several documents, or is too large or too deep.
    """
    loader = (_LenientLoader if is_lenient else _Loader)(text)
    try:
        return _constructed(loader, loader.get_single_node())
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None
    finally:
        loader.dispose()


def load_all_yaml(text: str) -> list[Any]:
    """Every document of a text; the errors of `load_yaml`."""
    loader = _Loader(text)
    documents = []
    try:
        while loader.check_node():
            documents.append(_constructed(loader, cast("yaml.Node", loader.get_node())))
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None
    finally:
        loader.dispose()
    return documents


def _constructed(loader: _Loader, node: yaml.Node | None) -> Any:
    if node is None:
        return None
    _check_size(node, {}, set(), 0)
    return loader.construct_document(node)


_DEPTH_MAX, _NODES_MAX = 100, 1_000_000
_TOO_DEEP = f"mappings and lists are nested more than {_DEPTH_MAX} deep"


def _check_size(node: yaml.Node, sizes: dict[int, int], within: set[int], depth: int) -> int:
    """How many nodes the text has if each alias is written out. A text of ten lines can have a billion."""
    key = id(node)
    if key in sizes:
        return sizes[key]
    if key in within:
        raise yaml.constructor.ConstructorError(None, None, "a mapping or list contains itself", node.start_mark)
    if depth > _DEPTH_MAX:
        raise yaml.constructor.ConstructorError(None, None, _TOO_DEEP, node.start_mark)
    size = 1
    if isinstance(node, yaml.CollectionNode):
        within.add(key)
        for item in node.value:
            for part in item if isinstance(item, tuple) else (item,):
                size += _check_size(part, sizes, within, depth + 1)
        within.discard(key)
    if size > _NODES_MAX:
        problem = f"with its aliases written out, this has more than {_NODES_MAX:,} parts"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    sizes[key] = size
    return size


def dump_yaml(plain: Any) -> str:
    """The text that `load_yaml` reads back, in the order of the keys."""
    written = yaml.dump(plain, Dumper=_Dumper, default_flow_style=False, width=120, allow_unicode=True, sort_keys=False)
    return str(written)


class _Loader(yaml.SafeLoader):
    """As the module says."""

    is_lenient = False

    def remembered_mapping(self, node: yaml.MappingNode) -> Iterator[YamlMapping]:
        made = YamlMapping()
        yield made  # what it holds may refer to it
        own = [(self.construct_object(key, deep=True), key.start_mark) for key, _ in node.value if not _is_merge(key)]
        for key, mark in own:
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} cannot be a key", mark)
            if key in made.lines and not self.is_lenient:
                raise DuplicateKeyError(key, mark)
            made.lines[key] = mark.line + 1
        self.flatten_mapping(node)
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            made.lines.setdefault(key, key_node.start_mark.line + 1)
            made[key] = self.construct_object(value_node, deep=True)

    def remembered_list(self, node: yaml.SequenceNode) -> Iterator[YamlList]:
        made = YamlList()
        yield made
        for item in node.value:
            made.append(self.construct_object(item, deep=True))
            made.lines.append(item.start_mark.line + 1)

    def number_of(self, node: yaml.ScalarNode) -> int:
        text = str(node.value).replace("_", "")
        sign = -1 if text.startswith("-") else 1
        digits = text.lstrip("+-")
        base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 10)
        try:
            return sign * int(digits if base == 10 else digits[2:], base)
        except ValueError:
            problem = f"a number of {len(digits):,} digits is not understood"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def float_of(self, node: yaml.ScalarNode) -> float:
        text = str(node.value).replace("_", "").lower()
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))


class _LenientLoader(_Loader):
    is_lenient = True


class _Dumper(yaml.SafeDumper):
    """One that quotes what either version of YAML would read as something else than a text."""


def _is_merge(key: yaml.Node) -> bool:
    return key.tag == "tag:yaml.org,2002:merge"


_WORDS: Final = {
    "null": (r"~|null|Null|NULL|", "~nN\0"),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (r"[-+]?0b[0-1_]+|[-+]?0o[0-7_]+|[-+]?0x[0-9a-fA-F_]+|[-+]?[0-9][0-9_]*", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:\.[0-9]+|[0-9][0-9_]*\.[0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?i:inf))|\.(?i:nan)",
        "-+0123456789.",
    ),
    "merge": (r"<<", "<"),
}
"""The plain words of YAML 1.2 by what they are, with the characters that they begin with; \\0: nothing."""

_Loader.yaml_implicit_resolvers = {}
for _kind, (_pattern, _first) in _WORDS.items():
    _starts = ["" if each == "\0" else each for each in _first]
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"^(?:{_pattern})$"), _starts)
_LenientLoader.yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.remembered_mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _Loader.remembered_list)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.number_of)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.float_of)
_LenientLoader.yaml_constructors = _Loader.yaml_constructors
