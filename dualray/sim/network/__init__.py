"""The virtual network: topologies, rates of flows that share links, and the time of collectives.

What is sent, and when, is decided by the processes above.
"""
