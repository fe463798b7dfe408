"""The text of a filter: an expression of columns in Python's syntax, such as "x > 3 and name in ['a', 'b']".

`/`, `//` and `%` follow Python here. `col("x") / 2` follows Arrow, as on Ray.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dualray.data.errors import missing
from dualray.data.expression_tree import BinaryExpr, BlockState, ColumnExpr, Expr, LiteralExpr, Operation, made_expr


def _divide(left: Any, right: Any) -> Any:
    """Python's `/`: a quotient of integers is a float."""
    return pc.divide(pc.cast(left, pa.float64()) if pa.types.is_integer(left.type) else left, right)


def _floor_divide(left: Any, right: Any) -> Any:
    whole = pa.types.is_integer(left.type) and pa.types.is_integer(right.type)
    found = pc.floor(_divide(left, right))
    return pc.cast(found, pa.int64()) if whole else found


def _modulo(left: Any, right: Any) -> Any:
    """Python's `%`: the sign of the divisor."""
    return pc.subtract(left, pc.multiply(_floor_divide(left, right), right))


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: BinaryExpr(Operation.DIV, left, right, _divide),
    ast.FloorDiv: lambda left, right: BinaryExpr(Operation.FLOORDIV, left, right, _floor_divide),
    ast.Mod: lambda left, right: BinaryExpr(Operation.MOD, left, right, _modulo),
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.And: operator.and_,
    ast.Or: operator.or_,
    ast.Not: operator.invert,
    ast.Invert: operator.invert,
    ast.USub: operator.neg,
    ast.UAdd: lambda value: value,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left.is_in(right),
    ast.NotIn: lambda left, right: left.not_in(right),
}


def parsed(text: str) -> Expr:
    """The expression of a text in Python's syntax: columns, values, arithmetic, comparisons, `and`, `or`, `not`, `in`.

    `is_null(x)` and `is_valid(x)` tell nulls from values.

    Raises:
        ValueError: the text is no such expression.
    """
    try:
        body = ast.parse(text, mode="eval").body
    except SyntaxError as why:
        raise ValueError(
            f"Invalid syntax in the expression: {text!r} is not an expression in Python's syntax: {why.msg}"
        ) from why
    return made_expr(_made(body, text))


class _DottedExpr(ColumnExpr):
    """A column with dots in its name, as those of the iris data, or else a field of a column of structs."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(".".join(names))
        self._names = names

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        names = self._names
        for count in range(len(names), 0, -1):
            column = ".".join(names[:count])
            if column in table.column_names:
                found = table[column]
                for field in names[count:]:
                    found = pc.struct_field(found, field)
                return found
        raise missing(".".join(names), table.column_names)


def _dotted(node: ast.Attribute, text: str) -> Expr:
    names = ast.unparse(node).split(".")
    if all(name.isidentifier() for name in names):
        return _DottedExpr(names)
    field: Expr = _made(node.value, text).struct.field(node.attr)
    return field


def _made(node: ast.AST, text: str) -> Any:
    match node:
        case ast.Constant():
            return LiteralExpr(node.value)
        case ast.Name(id=name):
            return ColumnExpr(name)
        case ast.Attribute():
            return _dotted(node, text)
        case ast.List() | ast.Tuple() | ast.Set():
            return [ast.literal_eval(element) for element in node.elts]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_made(left, text), _made(right, text))
        case ast.UnaryOp(op=op, operand=operand):
            return _OPERATORS[type(op)](_made(operand, text))
        case ast.BoolOp(op=op, values=values):
            made = [_made(value, text) for value in values]
            for value in made[1:]:
                made[0] = _OPERATORS[type(op)](made[0], value)
            return made[0]
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in _OPERATORS for op in ops):
            sides = [_made(side, text) for side in (left, *comparators)]
            both = [_OPERATORS[type(op)](sides[number], sides[number + 1]) for number, op in enumerate(ops)]
            for one in both[1:]:
                both[0] = both[0] & one
            return both[0]
        case ast.Call(func=ast.Name(id=("is_null" | "is_valid") as name), args=[argument], keywords=[]):
            made = _made(argument, text)
            return made.is_null() if name == "is_null" else made.is_not_null()
    raise ValueError(
        f"{ast.unparse(node)!r} in {text!r} cannot be part of an expression: use names of columns, values, arithmetic, "
        f"comparisons, `and`, `or`, `not`, `in`, is_null(x) and is_valid(x)"
    )
