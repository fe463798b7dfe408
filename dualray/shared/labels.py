"""Labels of nodes, and selectors of labels, as users write them: read and checked.

A label is a key and a value, both text: `{"zone": "a", "market": "spot"}`. Keys and values begin and end with a letter
or digit and have letters, digits, `-`, `_` and `.` between, at most 63 of them; a key may have a prefix such as
`example.com/`, a value may be empty. A selector asks for labels, with today's Ray's syntax:

    {"zone": "a"}            the value is a                 {"zone": "in(a, b)"}      it is one of these
    {"zone": "!a"}           it is not a                    {"zone": "!in(a, b)"}     it is none of these

A node without the label matches the two of the right or lower kind that begin with "!".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dualray.shared.model.specs import NODE_ID_LABEL, LabelOperator, LabelTerm

_WORD = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = re.compile(rf"(?:{_WORD}/)?{_WORD}")
_VALUE = re.compile(rf"(?:{_WORD})?")
_IN = re.compile(r"(!?)in\((.*)\)")

Pairs = tuple[tuple[str, str], ...]


def parse_labels(name: str, value: Any) -> dict[str, str]:
    """Labels of a node, checked.

    Raises:
        TypeError: no mapping, or a key or value that is no text.
        ValueError: a key or value with characters that it cannot have, or a key that every node has.
    """
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict of key to value, such as {{'zone': 'a'}}")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise TypeError(f"{name}={dict(value)!r}: the key {key!r} and the value {text!r} must both be str")
        if key == NODE_ID_LABEL:
            raise ValueError(f"{name}: dualray sets the label {NODE_ID_LABEL!r} of every node; leave this label out")
        _check(name, _KEY, "key", key)
        _check(name, _VALUE, "value", text)
    return dict(value)


def _check(name: str, pattern: re.Pattern[str], what: str, text: str) -> None:
    if not pattern.fullmatch(text):
        raise ValueError(
            f"{name}: the {what} {text!r} of a label must have at most 63 letters, digits, '-', '_' and '.', and must "
            f"begin and end with a letter or digit{'; a prefix ends with a slash' if what == 'key' else ''}"
        )


def as_pairs(labels: Mapping[str, str]) -> Pairs:
    """Labels as the core keeps them: sorted, so that equal ones are equal."""
    return tuple(sorted(labels.items()))


def labels_of_nodes(labels: Any, nodes: int) -> list[Pairs]:
    """The labels of each node, from those of all (a mapping) or those of each (a list of mappings).

    Raises:
        ValueError: a list that is longer than there are nodes.
    """
    if labels is None or isinstance(labels, Mapping):
        return [as_pairs(labels or {})] * nodes
    if len(labels) > nodes:
        raise ValueError(f"labels= has labels for {len(labels)} nodes, but the cluster has {nodes} nodes")
    return [as_pairs(each) for each in labels] + [()] * (nodes - len(labels))


def parse_selector(name: str, value: Any) -> tuple[LabelTerm, ...]:
    """What the labels of a node must meet.

    Raises:
        TypeError, ValueError: as for labels.
    """
    if value is None:
        return ()
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}={value!r} must be a dict of key to value, such as {{'zone': 'in(a, b)'}}")
    return tuple([_term(name, key, text) for key, text in sorted(value.items())])


def _term(name: str, key: Any, text: Any) -> LabelTerm:
    if not isinstance(key, str) or not isinstance(text, str):
        raise TypeError(f"{name}: the key {key!r} and the value {text!r} must both be str")
    _check(name, _KEY, "key", key)
    listed = _IN.fullmatch(text)
    if listed:
        is_negated, values = bool(listed[1]), [part.strip() for part in listed[2].split(",")]
        if not any(values):
            raise ValueError(f"{name}: {key!r}: {text!r} has no value; write 'in(a, b)'")
        if not all(values):
            raise ValueError(f"{name}: {key!r}: {text!r} has an empty value; write 'in(a, b)'")
    else:
        is_negated, values = text.startswith("!"), [text.removeprefix("!")]
    return label_term(name, key, LabelOperator.NOT_IN if is_negated else LabelOperator.IN, values)


def label_term(name: str, key: str, operator: LabelOperator, values: Sequence[str] = ()) -> LabelTerm:
    """One term, its key and values checked."""
    _check(name, _KEY, "key", key)
    for value in values:
        _check(name, _VALUE, "value", value)
    return LabelTerm(key=key, operator=operator, values=tuple(values))
