"""The life of a session's processes: its directory, and how processes are started, watched and ended.

What a process does is in dualray/real/processes.
"""
