"""The names of the actors that there are."""

from __future__ import annotations

from dualray import runtime


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """The names of the actors that have one and have not ended, in the order in which they were named.

    Args:
        all_namespaces: those of all namespaces, as `{"name": ..., "namespace": ...}`; else the names in this
            program's.
    """
    verbs = runtime.current("list_named_actors").verbs
    rows = verbs.head_rows("named_actors")
    if all_namespaces:
        return [{"name": row["name"], "namespace": row["namespace"]} for row in rows]
    namespace = verbs.namespace
    return [row["name"] for row in rows if row["namespace"] == namespace]
