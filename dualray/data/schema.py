"""The schema of a dataset, as Ray shows it."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


class Schema:
    """Names and types of columns.

    Attributes:
        base_schema: the schema of Arrow; its attributes are attributes of this one, too.
    """

    def __init__(self, base_schema: pa.Schema, *, data_context: Any = None) -> None:
        self.base_schema = base_schema

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.base_schema.names)

    @property
    def types(self) -> list[pa.DataType]:
        """The Arrow types of the columns."""
        return list(self.base_schema.types)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, pa.Schema):
            return bool(self.base_schema.equals(other))
        return isinstance(other, Schema) and self.names == other.names and self.types == other.types

    def __hash__(self) -> int:
        return hash(tuple(self.names))

    def __len__(self) -> int:
        return len(self.base_schema)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "base_schema":
            raise AttributeError(f"a schema has no attribute {name!r}")
        return getattr(self.base_schema, name)

    def __repr__(self) -> str:
        width = max(len(name) for name in ["Column", *self.names])
        rows = [("Column", "Type"), ("-" * 6, "-" * 4), *zip(self.names, map(str, self.types), strict=True)]
        return "\n".join(f"{name:<{width}}  {kind}" for name, kind in rows)
