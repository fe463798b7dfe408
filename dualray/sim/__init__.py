"""Sim mode: runners that carry out the commands of the machines in `shared/` on a virtual cluster, inside one process
and in virtual time, and feed what happened back as events.
"""
