"""User code inside a simulation: it sees virtual time, its own modules and environment, and nothing of its neighbours.

What a task does to the cluster goes through dualray/sim/processes.
"""
