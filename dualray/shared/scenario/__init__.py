"""Scenarios as data: cluster, workload, faults and expectations, how their files are read, and how faults are drawn.

What a fault does to a cluster is in dualray/real and dualray/sim. Nothing is imported here: faults alone need no
pydantic."""
