"""`list_named_actors`, which lists the names of actors."""

from __future__ import annotations

from dualray import runtime


def list_named_actors(all_namespaces: bool = False) -> list[str] | list[dict[str, str]]:
    """Return the names of all named actors that have not ended, in the order in which they were created.

    Args:
        all_namespaces: whether to list the actors of all namespaces, as `{"name": ..., "namespace": ...}`. By default,
            the result has only the names in this program's namespace.
    """
    verbs = runtime.current("list_named_actors").verbs
    rows = verbs.head_rows("named_actors")
    if all_namespaces:
        return [{"name": row["name"], "namespace": row["namespace"]} for row in rows]
    namespace = verbs.namespace
    return [row["name"] for row in rows if row["namespace"] == namespace]
