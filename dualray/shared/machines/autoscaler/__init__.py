"""The machine that decides how many nodes of each group there are; a part of the head, which tells it what waits.

What it orders is carried out by a provider of nodes: `sim/cluster/provider.py` in a simulation. How demands are packed
is a policy's choice (policies/bin_packing.py).
"""
