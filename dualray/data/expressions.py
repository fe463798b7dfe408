"""Expressions of columns: `col("x") * 2 + lit(1)`, for `Dataset.with_column` and `filter`.

An expression is a tree. `evaluate` computes it for a table with the functions of `pyarrow.compute`. `parsed` makes one
from text in Python's syntax, such as "x > 3 and name in ['a', 'b']".
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualray.data import blocks
from dualray.data.datatype import DataType
from dualray.data.errors import check_columns
from dualray.data.namespaces import ArrayFunctions, ListFunctions, StringFunctions, StructFunctions, TimeFunctions

__all__ = [
    "AliasExpr",
    "BinaryExpr",
    "ColumnExpr",
    "Expr",
    "LiteralExpr",
    "StarExpr",
    "UDFExpr",
    "UnaryExpr",
    "col",
    "lit",
    "pyarrow_udf",
    "star",
    "udf",
]

_MATHS = {
    name: name
    for name in ("abs", "acos", "asin", "atan", "ceil", "cos", "exp", "floor", "ln", "log10", "log2", "negate", "round")
} | {name: name for name in ("sign", "sin", "tan", "trunc")}


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


def _add(left: Any, right: Any) -> Any:
    if pa.types.is_string(left.type) or pa.types.is_large_string(left.type):
        return pc.binary_join_element_wise(left, right, "")
    return pc.add(left, right)


def _method(function: Callable[[Any, Any], Any], *, is_reflected: bool = False) -> Any:
    """An operator of expressions."""

    def method(self: Expr, other: Any) -> Expr:
        left, right = (_expr(other), self) if is_reflected else (self, _expr(other))
        return BinaryExpr(function, left, right)

    return method


def _floored(left: Any, right: Any) -> Any:
    """Ray's `//`. Arrow divides integers to an integer, cut towards zero."""
    return pc.floor(pc.divide(left, right))


def _rest(left: Any, right: Any) -> Any:
    """Ray's `%`."""
    return pc.subtract(left, pc.multiply(_floored(left, right), right))


class Expr:
    """An expression of columns. Operators and methods make new expressions."""

    name: str | None = None
    operands: tuple[Expr, ...] = ()
    """The expressions whose values it uses."""

    @property
    def calls_user_code(self) -> bool:
        """Whether the expression, or one in it, calls a function of the program's."""
        return any(each.calls_user_code for each in self.operands)

    def evaluate(self, table: pa.Table) -> Any:
        """Compute the values for the rows of a table: an Arrow column, or one value for all rows."""
        raise NotImplementedError

    def alias(self, name: str) -> Expr:
        """Give the result a name."""
        return AliasExpr(self, name)

    def is_null(self) -> Expr:
        """Whether the value is null."""
        return UnaryExpr(pc.is_null, self)

    def is_not_null(self) -> Expr:
        """Whether the value is not null."""
        return UnaryExpr(pc.is_valid, self)

    def is_in(self, values: Sequence[Any]) -> Expr:
        """Whether the value is one of these."""
        known = values.value if isinstance(values, LiteralExpr) else values
        return UnaryExpr(lambda column: pc.is_in(column, value_set=_value_set(known, column)), self)

    def not_in(self, values: Sequence[Any]) -> Expr:
        """Whether the value is none of these."""
        return ~self.is_in(values)

    def power(self, exponent: Any) -> Expr:
        """The value to this power."""
        return BinaryExpr(pc.power, self, _expr(exponent))

    def cast(self, target_type: Any, *, safe: bool = True) -> Expr:
        """The value in another Arrow type."""
        wanted = target_type.to_arrow_dtype() if isinstance(target_type, DataType) else target_type
        return UnaryExpr(lambda column: pc.cast(column, wanted, safe=safe), self)

    @property
    def str(self) -> StringFunctions:
        """Functions of text."""
        return StringFunctions(self._applied)

    @property
    def list(self) -> ListFunctions:
        """Functions of lists."""
        return ListFunctions(self._applied)

    @property
    def struct(self) -> StructFunctions:
        """Fields of structs."""
        return StructFunctions(self._applied)

    @property
    def arr(self) -> ArrayFunctions:
        """Functions of arrays of a fixed size."""
        return ArrayFunctions(self._applied)

    @property
    def dt(self) -> TimeFunctions:
        """Parts of times."""
        return TimeFunctions(self._applied)

    def _applied(self, function: Callable[[Any], Any]) -> Expr:
        return UnaryExpr(function, self)

    def __getattr__(self, name: str_) -> Callable[[], Expr]:
        if name not in _MATHS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return lambda: UnaryExpr(getattr(pc, name), self)

    def __bool__(self) -> bool:
        raise TypeError("an expression of columns is neither true nor false; use & and | instead of `and` and `or`")

    def __invert__(self) -> Expr:
        return UnaryExpr(pc.invert, self)

    def __neg__(self) -> Expr:
        return UnaryExpr(pc.negate, self)

    __hash__ = object.__hash__
    __add__ = _method(_add)
    __sub__ = _method(pc.subtract)
    __mul__ = _method(pc.multiply)
    __truediv__ = _method(pc.divide)
    __floordiv__ = _method(_floored)
    __mod__ = _method(_rest)
    __pow__ = _method(pc.power)
    __and__ = _method(pc.and_kleene)
    __or__ = _method(pc.or_kleene)
    __gt__ = _method(pc.greater)
    __ge__ = _method(pc.greater_equal)
    __lt__ = _method(pc.less)
    __le__ = _method(pc.less_equal)
    __eq__ = _method(pc.equal)
    __ne__ = _method(pc.not_equal)
    __radd__ = _method(_add, is_reflected=True)
    __rsub__ = _method(pc.subtract, is_reflected=True)
    __rmul__ = _method(pc.multiply, is_reflected=True)
    __rtruediv__ = _method(pc.divide, is_reflected=True)
    __rfloordiv__ = _method(_floored, is_reflected=True)
    __rmod__ = _method(_rest, is_reflected=True)
    __rpow__ = _method(pc.power, is_reflected=True)
    __rand__ = _method(pc.and_kleene, is_reflected=True)
    __ror__ = _method(pc.or_kleene, is_reflected=True)


str_ = str
"""Python's own: a class body with a member `str` hides it."""


class ColumnExpr(Expr):
    """The values of a column."""

    def __init__(self, name: str) -> None:
        self.name = name

    def evaluate(self, table: pa.Table) -> Any:
        check_columns([self.name], table.column_names)
        return table[self.name]

    def __repr__(self) -> str:
        return f"col({self.name!r})"


class LiteralExpr(Expr):
    """One value for all rows."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def evaluate(self, table: pa.Table) -> Any:
        return pa.scalar(self.value)

    def __repr__(self) -> str:
        return f"lit({self.value!r})"


class BinaryExpr(Expr):
    """A function of two expressions."""

    def __init__(self, function: Callable[[Any, Any], Any], left: Expr, right: Expr) -> None:
        self.function, self.left, self.right = function, left, right
        self.operands = (left, right)

    def evaluate(self, table: pa.Table) -> Any:
        return self.function(self.left.evaluate(table), self.right.evaluate(table))

    def __repr__(self) -> str:
        return f"{self.function.__name__}({self.left!r}, {self.right!r})"


class UnaryExpr(Expr):
    """A function of one expression."""

    def __init__(self, function: Callable[[Any], Any], operand: Expr) -> None:
        self.function, self.operand = function, operand
        self.operands = (operand,)

    def evaluate(self, table: pa.Table) -> Any:
        return self.function(self.operand.evaluate(table))

    def __repr__(self) -> str:
        return f"{self.function.__name__}({self.operand!r})"


class UDFExpr(Expr):
    """A user's function of whole columns."""

    calls_user_code = True

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], data_type: Any) -> None:
        self.fn, self.args, self.kwargs, self.data_type = fn, args, kwargs, data_type

    def evaluate(self, table: pa.Table) -> Any:
        args = [arg.evaluate(table) if isinstance(arg, Expr) else arg for arg in self.args]
        kwargs = {key: arg.evaluate(table) if isinstance(arg, Expr) else arg for key, arg in self.kwargs.items()}
        found = self.fn(*args, **kwargs)
        return pa.array(found) if type(found).__module__.startswith("pandas") else blocks.column_of(found)

    def __repr__(self) -> str:
        return f"{self.fn.__name__}({', '.join(map(repr, self.args))})"


class AliasExpr(Expr):
    """An expression with a name."""

    def __init__(self, expr: Expr, name: str) -> None:
        self.expr, self.name = expr, name
        self.operands = (expr,)

    def evaluate(self, table: pa.Table) -> Any:
        return self.expr.evaluate(table)

    def __repr__(self) -> str:
        return f"{self.expr!r}.alias({self.name!r})"


class StarExpr(Expr):
    """All columns; for `select_columns`."""

    def __repr__(self) -> str:
        return "star()"


def col(name: str) -> ColumnExpr:
    """Return the expression of a column."""
    return ColumnExpr(name)


def lit(value: Any) -> LiteralExpr:
    """Return the expression of one value for all rows."""
    return LiteralExpr(value)


def star() -> StarExpr:
    """Return the expression of all columns."""
    return StarExpr()


def udf(return_dtype: Any = None) -> Callable[[Callable[..., Any]], Callable[..., UDFExpr]]:
    """Decorate a function of Arrow columns. A call with expressions makes an expression.

    Args:
        return_dtype: accepted as in Ray, and without effect: the returned column has its type.
    """

    def decorate(fn: Callable[..., Any]) -> Callable[..., UDFExpr]:
        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> UDFExpr:
            return UDFExpr(fn, args, kwargs, return_dtype)

        return call

    return decorate


pyarrow_udf = udf


def column_of(expr: Expr, table: pa.Table) -> Any:
    """The values of an expression, one for each row of a table."""
    found = expr.evaluate(table)
    return pa.repeat(found, table.num_rows) if isinstance(found, pa.Scalar) else found


def _expr(value: Any) -> Expr:
    return value if isinstance(value, Expr) else LiteralExpr(value)


def _value_set(values: Any, column: Any) -> pa.Array:
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    try:
        return pa.array(listed, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array(listed)  # 2.5 among integers: Arrow compares the common type


# ---- Text --------------------------------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: BinaryExpr(_divide, left, right),
    ast.FloorDiv: lambda left, right: BinaryExpr(_floor_divide, left, right),
    ast.Mod: lambda left, right: BinaryExpr(_modulo, left, right),
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
        raise ValueError(f"{text!r} is not an expression in Python's syntax: {why.msg}") from why
    return _expr(_made(body, text))


def _made(node: ast.AST, text: str) -> Any:
    match node:
        case ast.Constant():
            return LiteralExpr(node.value)
        case ast.Name(id=name):
            return ColumnExpr(name)
        case ast.Attribute(value=value, attr=name):
            return _made(value, text).struct.field(name)
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
        f"{ast.unparse(node)!r} in {text!r} cannot stand in an expression: use names of columns, values, arithmetic, "
        f"comparisons, `and`, `or`, `not`, `in`, is_null(x) and is_valid(x)"
    )
