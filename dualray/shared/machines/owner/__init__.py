"""The machines of a driver and of every worker: a process's tasks, values, leases, actor calls, and execution.

Nodes are chosen in machines/head and machines/node; what a node's store keeps is decided in machines/node.
"""
