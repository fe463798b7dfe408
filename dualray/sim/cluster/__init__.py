"""The virtual cluster: it makes the processes of nodes, applies faults at their time, and examines what is left.

What a process does is in dualray/sim/processes; what a fault is, in dualray/shared/scenario.
"""
