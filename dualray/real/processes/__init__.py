"""The processes of a session, each a runner of one machine: head, node manager, worker and driver.

They carry out commands and report events; the machines decide.
"""
