"""The virtual processes, each a runner of one machine: head, node manager and worker, with the stores that they use.

They carry out commands and report events; the machines decide.
"""
