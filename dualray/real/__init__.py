"""Real mode: runners that carry out the commands of the machines in `shared/` with processes, sockets, shared memory
and Redis, and feed what happened back as events.
"""
