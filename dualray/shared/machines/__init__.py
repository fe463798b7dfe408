"""One machine a role: `handle(event, now_ns) -> list[Command]`, synchronous, deterministic, without I/O.

A component machine (object_store, leases, ...) writes its commands to the outbox of the process it is part of. Three
compositions run: owner/owner.py in a driver and in every worker, node/node.py in a node manager, and head/head.py on
the head.
"""
