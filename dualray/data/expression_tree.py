"""The expressions of columns: a tree of operations, each of which computes an Arrow column for a table.

`evaluate` uses the functions of `pyarrow.compute`. `expressions.py` has the names that programs use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dualray.data import blocks
from dualray.data.datatype import DataType
from dualray.data.draws import RENEWED
from dualray.data.errors import check_columns
from dualray.data.namespaces import (
    ArrayFunctions,
    ListFunctions,
    MapFunctions,
    StringFunctions,
    StructFunctions,
    TimeFunctions,
)

_MATHS = {
    name: name
    for name in ("abs", "acos", "asin", "atan", "ceil", "cos", "exp", "floor", "ln", "log10", "log2", "negate", "round")
} | {name: name for name in ("sign", "sin", "tan", "trunc")}
_LITERAL_MAX: Final = 50


class Operation(StrEnum):
    """The operation of a `BinaryExpr` or `UnaryExpr`."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MOD = "mod"
    FLOORDIV = "floordiv"
    GT = "gt"
    LT = "lt"
    GE = "ge"
    LE = "le"
    EQ = "eq"
    NE = "ne"
    AND = "and"
    OR = "or"
    NOT = "not"
    IS_NULL = "is_null"
    IS_NOT_NULL = "is_not_null"
    IN = "in"
    NOT_IN = "not_in"


class BlockState:
    """The place of the rows that an expression is evaluated for; random values and ids follow from it.

    Attributes:
        number: the number of the block.
        rows_before: rows of the block that were evaluated before.
    """

    def __init__(self, number: int = 0, seed: Sequence[int] = (), times: int = 0, token: int = 0) -> None:
        self.number = number
        self.rows_before = 0
        self._seed, self._times, self._token = seed, times, token
        self._order: dict[int, int] = {}

    def draws(self, expr: Expr, seed: int | None, *, renews: bool) -> np.random.Generator:
        """Random numbers for these rows. Without a seed each expression of a dataset has its own. `renews`: with a
        seed, too, each execution of the dataset has its own."""
        if seed is None:
            place = [*self._seed, self._place(expr)]
        else:
            place = [seed, RENEWED, self._times] if renews and self._times else [seed]
        return np.random.default_rng([*place, self.number, self.rows_before])

    def draws_of_this_dataset(self, expr: Expr) -> np.random.Generator:
        """Random numbers that no other dataset has, and no other run."""
        return np.random.default_rng([self._token, self._place(expr), self.number, self.rows_before])

    def _place(self, expr: Expr) -> int:
        return self._order.setdefault(id(expr), len(self._order))


def _decoded(values: Any) -> Any:
    return pc.cast(values, values.type.value_type) if pa.types.is_dictionary(values.type) else values


def _add(left: Any, right: Any) -> Any:
    left, right = (
        pc.cast(side, side.type.value_type) if pa.types.is_dictionary(side.type) else side for side in (left, right)
    )
    if pa.types.is_string(left.type) or pa.types.is_large_string(left.type):
        return pc.binary_join_element_wise(left, right, "")
    return pc.add(left, right)


def _floored(left: Any, right: Any) -> Any:
    """Ray's `//`. Arrow divides integers to an integer, cut towards zero."""
    return pc.floor(pc.divide(left, right))


def _rest(left: Any, right: Any) -> Any:
    """Ray's `%`."""
    return pc.subtract(left, pc.multiply(_floored(left, right), right))


_FUNCTIONS: dict[Operation, Callable[..., Any]] = {
    Operation.ADD: _add,
    Operation.SUB: pc.subtract,
    Operation.MUL: pc.multiply,
    Operation.DIV: pc.divide,
    Operation.MOD: _rest,
    Operation.FLOORDIV: _floored,
    Operation.GT: pc.greater,
    Operation.LT: pc.less,
    Operation.GE: pc.greater_equal,
    Operation.LE: pc.less_equal,
    Operation.EQ: pc.equal,
    Operation.NE: pc.not_equal,
    Operation.AND: pc.and_kleene,
    Operation.OR: pc.or_kleene,
    Operation.NOT: pc.invert,
    Operation.IS_NULL: pc.is_null,
    Operation.IS_NOT_NULL: pc.is_valid,
}
_SIGNS = {
    Operation.ADD: "+",
    Operation.SUB: "-",
    Operation.MUL: "*",
    Operation.DIV: "/",
    Operation.MOD: "%",
    Operation.FLOORDIV: "//",
    Operation.GT: ">",
    Operation.LT: "<",
    Operation.GE: ">=",
    Operation.LE: "<=",
    Operation.EQ: "==",
    Operation.NE: "!=",
    Operation.AND: "&",
    Operation.OR: "|",
    Operation.NOT_IN: "not in",
}


def _method(op: Operation, *, is_reflected: bool = False) -> Any:
    """An operator of expressions."""

    def method(self: Expr, other: Any) -> Expr:
        left, right = (made_expr(other), self) if is_reflected else (self, made_expr(other))
        return BinaryExpr(op, left, right)

    return method


class Expr:
    """An expression of columns. Operators and methods make new expressions. `print` shows its tree."""

    name: str | None = None
    operands: tuple[Expr, ...] = ()
    """The expressions whose values it uses."""
    needs_number: bool = False
    """Whether its values depend on the place of the rows, as random numbers do."""

    @property
    def calls_user_code(self) -> bool:
        """Whether the expression, or one in it, calls a function of the program's."""
        return any(each.calls_user_code for each in self.operands)

    @property
    def follows_place(self) -> bool:
        """Whether its values, or those of an expression in it, depend on the place of the rows."""
        return self.needs_number or any(each.follows_place for each in self.operands)

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        """Compute the values for the rows of a table: an Arrow column, or one value for all rows."""
        raise NotImplementedError

    def label(self) -> str_:
        """Return the expression as text in one line."""
        raise NotImplementedError

    def parts(self) -> Sequence[tuple[str_, Expr]]:
        """The expressions that `print` shows below it, with their names."""
        return [("", each) for each in self.operands]

    def in_line(self) -> str_:
        """The whole expression in one line."""
        raise NotImplementedError

    def __repr__(self) -> str_:
        return "\n".join(_tree(self, " " * 4))

    def alias(self, name: str_) -> Expr:
        """Give the result a name."""
        return AliasExpr(self, name)

    def is_null(self) -> Expr:
        """Whether the value is null."""
        return UnaryExpr(Operation.IS_NULL, self)

    def is_not_null(self) -> Expr:
        """Whether the value is not null."""
        return UnaryExpr(Operation.IS_NOT_NULL, self)

    def is_in(self, values: Any) -> Expr:
        """Whether the value is one of these."""
        return BinaryExpr(Operation.IN, self, values if isinstance(values, LiteralExpr) else LiteralExpr(values))

    def not_in(self, values: Any) -> Expr:
        """Whether the value is none of these."""
        return BinaryExpr(Operation.NOT_IN, self, values if isinstance(values, LiteralExpr) else LiteralExpr(values))

    def power(self, exponent: Any) -> Expr:
        """The value to this power."""
        return FunctionExpr("power", pc.power, self, made_expr(exponent))

    def cast(self, target_type: Any, *, safe: bool = True) -> Expr:
        """The value in another Arrow type."""
        wanted = target_type.to_arrow_dtype() if isinstance(target_type, DataType) else target_type
        return self._applied("cast", lambda column: pc.cast(column, wanted, safe=safe))

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
    def map(self) -> MapFunctions:
        """Keys and values of maps."""
        return MapFunctions(self._applied)

    @property
    def arr(self) -> ArrayFunctions:
        """Functions of arrays of a fixed size."""
        return ArrayFunctions(self._applied)

    @property
    def dt(self) -> TimeFunctions:
        """Parts of times."""
        return TimeFunctions(self._applied)

    def _applied(self, name: str_, function: Callable[[Any], Any]) -> Expr:
        return FunctionExpr(name, function, self)

    def __getattr__(self, name: str_) -> Callable[[], Expr]:
        if name not in _MATHS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return lambda: self._applied(name, getattr(pc, name))

    def __bool__(self) -> bool:
        raise TypeError("an expression of columns is neither true nor false: write & and | instead of `and` and `or`")

    def __invert__(self) -> Expr:
        return UnaryExpr(Operation.NOT, self)

    def __neg__(self) -> Expr:
        return self._applied("negate", pc.negate)

    def __pow__(self, other: Any) -> Expr:
        return self.power(other)

    def __rpow__(self, other: Any) -> Expr:
        return made_expr(other).power(self)

    __hash__ = object.__hash__
    __add__ = _method(Operation.ADD)
    __sub__ = _method(Operation.SUB)
    __mul__ = _method(Operation.MUL)
    __truediv__ = _method(Operation.DIV)
    __floordiv__ = _method(Operation.FLOORDIV)
    __mod__ = _method(Operation.MOD)
    __and__ = _method(Operation.AND)
    __or__ = _method(Operation.OR)
    __gt__ = _method(Operation.GT)
    __ge__ = _method(Operation.GE)
    __lt__ = _method(Operation.LT)
    __le__ = _method(Operation.LE)
    __eq__ = _method(Operation.EQ)
    __ne__ = _method(Operation.NE)
    __radd__ = _method(Operation.ADD, is_reflected=True)
    __rsub__ = _method(Operation.SUB, is_reflected=True)
    __rmul__ = _method(Operation.MUL, is_reflected=True)
    __rtruediv__ = _method(Operation.DIV, is_reflected=True)
    __rfloordiv__ = _method(Operation.FLOORDIV, is_reflected=True)
    __rmod__ = _method(Operation.MOD, is_reflected=True)
    __rand__ = _method(Operation.AND, is_reflected=True)
    __ror__ = _method(Operation.OR, is_reflected=True)


str_ = str
"""Python's own: a class body with a member `str` hides it."""


class ColumnExpr(Expr):
    """The values of a column."""

    def __init__(self, name: str) -> None:
        self.name = name

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        check_columns([self.name], table.column_names)
        return table[self.name]

    def label(self) -> str:
        return f"COL({self.name!r})"

    def in_line(self) -> str:
        return f"col({self.name!r})"


class LiteralExpr(Expr):
    """One value for all rows."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        return pa.scalar(self.value)

    def label(self) -> str:
        return f"LIT({self._short(_LITERAL_MAX)})"

    def in_line(self) -> str:
        return self._short(_LITERAL_MAX)

    def _short(self, most: int) -> str:
        words = repr(self.value)
        return words if len(words) <= most else words[: most - 3] + "..."


class BinaryExpr(Expr):
    """An operation of two expressions.

    Args:
        op: the operation.
        left, right: the two expressions.
        function: what computes the operation, if not the usual function.
    """

    def __init__(
        self, op: Operation, left: Expr, right: Expr, function: Callable[[Any, Any], Any] | None = None
    ) -> None:
        self.op, self.left, self.right, self._function = op, left, right, function
        self.operands = (left, right)

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        left = self.left.evaluate(table, block)
        if self.op in (Operation.IN, Operation.NOT_IN):
            assert isinstance(self.right, LiteralExpr)
            found = pc.is_in(left, value_set=_value_set(self.right.value, left))
            return found if self.op is Operation.IN else pc.invert(found)
        return (self._function or _FUNCTIONS[self.op])(left, self.right.evaluate(table, block))

    def label(self) -> str:
        return self.op.name

    def parts(self) -> Sequence[tuple[str, Expr]]:
        return [("left", self.left), ("right", self.right)]

    def in_line(self) -> str:
        sides = [f"({each.in_line()})" if isinstance(each, BinaryExpr) else each.in_line() for each in self.operands]
        return f"{sides[0]} {_SIGNS.get(self.op, self.op.value)} {sides[1]}"


class UnaryExpr(Expr):
    """An operation of one expression."""

    def __init__(self, op: Operation, operand: Expr) -> None:
        self.op, self.operand = op, operand
        self.operands = (operand,)

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        return _FUNCTIONS[self.op](self.operand.evaluate(table, block))

    def label(self) -> str:
        return self.op.name

    def parts(self) -> Sequence[tuple[str, Expr]]:
        return [("operand", self.operand)]

    def in_line(self) -> str:
        inner = self.operand.in_line()
        inner = f"({inner})" if isinstance(self.operand, BinaryExpr) else inner
        return f"~{inner}" if self.op is Operation.NOT else f"{inner}.{self.op.value}()"


class FunctionExpr(Expr):
    """A function of dualray's of the values of other expressions."""

    def __init__(self, function_name: str, function: Callable[..., Any], *operands: Expr) -> None:
        self.function_name, self.function, self.operands = function_name, function, operands

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        return self.function(*(each.evaluate(table, block) for each in self.operands))

    def label(self) -> str:
        return f"UDF({self.function_name})"

    def parts(self) -> Sequence[tuple[str, Expr]]:
        return [(f"arg[{number}]", each) for number, each in enumerate(self.operands)]

    def in_line(self) -> str:
        return f"{self.function_name}({', '.join(each.in_line() for each in self.operands)})"


class UDFExpr(Expr):
    """A user's function of whole columns."""

    calls_user_code = True

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], data_type: Any) -> None:
        self.fn, self.args, self.kwargs, self.data_type = fn, args, kwargs, data_type
        self.operands = tuple(each for each in (*args, *kwargs.values()) if isinstance(each, Expr))

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        args = [_value_of(arg, table, block) for arg in self.args]
        found = self.fn(*args, **{key: _value_of(arg, table, block) for key, arg in self.kwargs.items()})
        return pa.array(found) if type(found).__module__.startswith("pandas") else blocks.column_of(found)

    def label(self) -> str:
        return f"UDF({getattr(self.fn, '__name__', self.fn)})"

    def parts(self) -> Sequence[tuple[str, Expr]]:
        return [
            *((f"arg[{number}]", made_expr(arg)) for number, arg in enumerate(self.args)),
            *((f"kwarg[{key!r}]", made_expr(arg)) for key, arg in self.kwargs.items()),
        ]

    def in_line(self) -> str:
        args = [made_expr(arg).in_line() for arg in self.args]
        kwargs = [f"{key}={made_expr(arg).in_line()}" for key, arg in self.kwargs.items()]
        return f"{getattr(self.fn, '__name__', self.fn)}({', '.join(args + kwargs)})"


class AliasExpr(Expr):
    """An expression with a name."""

    def __init__(self, expr: Expr, name: str) -> None:
        self.expr, self.name = expr, name
        self.operands = (expr,)

    def evaluate(self, table: pa.Table, block: BlockState) -> Any:
        return self.expr.evaluate(table, block)

    def label(self) -> str:
        return f"ALIAS({self.name!r})"

    def in_line(self) -> str:
        return f"{self.expr.in_line()}.alias({self.name!r})"


class StarExpr(Expr):
    """All columns; for `select_columns`."""

    def label(self) -> str:
        return "COL(*)"

    def in_line(self) -> str:
        return "col(*)"


class UnnestExpr(Expr):
    """The fields of structs, a column each; for `with_columns`."""

    def __init__(self, expr: Expr) -> None:
        if isinstance(expr, UnnestExpr) or not isinstance(expr, Expr):
            raise TypeError(f"unnest takes an expression of structs, not a {type(expr).__name__}")
        self.expr = expr
        self.operands = (expr,)

    def alias(self, name: str) -> Expr:
        raise TypeError("unnest creates one column for each field of a struct: use ds.with_columns(unnest(expr))")

    def columns(self, table: pa.Table, block: BlockState) -> dict[str, Any]:
        """The values of each field."""
        found = column_of(self.expr, table, block)
        if not pa.types.is_struct(found.type):
            raise TypeError(f"unnest: the values of {self.expr.in_line()} are of type {found.type}, and not structs")
        names = [field.name for field in found.type]
        if len(set(names)) < len(names):
            raise ValueError(f"unnest: two fields of the structs have the same name: {', '.join(map(repr, names))}")
        return {name: pc.struct_field(found, [number]) for number, name in enumerate(names)}

    def label(self) -> str:
        return "UNNEST"

    def in_line(self) -> str:
        return f"unnest({self.expr.in_line()})"


# ---- Values ------------------------------------------------------------------------------------------------------


def column_of(expr: Expr, table: pa.Table, block: BlockState) -> Any:
    """The values of an expression, one for each row of a table."""
    found = expr.evaluate(table, block)
    return pa.repeat(found, table.num_rows) if isinstance(found, pa.Scalar) else found


def made_expr(value: Any) -> Expr:
    """The expression of a value; an expression stays as it is."""
    return value if isinstance(value, Expr) else LiteralExpr(value)


def _value_of(value: Any, table: pa.Table, block: BlockState) -> Any:
    return value.evaluate(table, block) if isinstance(value, Expr) else value


def _value_set(values: Any, column: Any) -> pa.Array:
    listed = values.tolist() if isinstance(values, np.ndarray) else list(values)
    try:
        return pa.array(listed, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array(listed)  # 2.5 among integers: Arrow compares the common type


def _tree(expr: Expr, indent: str) -> list[str]:
    """The lines of an expression and of those in it, each a step further to the right."""
    lines, parts = [expr.label()], expr.parts()
    for number, (name, part) in enumerate(parts):
        is_last = number == len(parts) - 1
        first, *rest = _tree(part, indent + (" " * 4 if is_last else "│   "))
        lines += [f"{indent}{'└── ' if is_last else '├── '}{name}{': ' if name else ''}{first}", *rest]
    return lines
