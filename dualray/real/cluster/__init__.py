"""A cluster that outlives a program: its addresses, the daemon of each machine, and the gateway between machines.

Sessions and their processes are started in dualray/real/session.
"""
