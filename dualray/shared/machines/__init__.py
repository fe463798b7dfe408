"""One machine a role: `handle(event, now_ns) -> list[Command]`, synchronous, deterministic, without I/O.

A component machine (object_store, leases, ...) writes its commands to the outbox of the process it is part of; three
compositions are what runs: owner.py in a driver and in every worker, node.py in a node manager, head.py on the head.
"""
