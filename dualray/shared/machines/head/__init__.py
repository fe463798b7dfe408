"""The machines of the head: membership, placement of tasks, groups and actors, and the locations of objects.

Each node chooses the process that runs a task there (machines/node).
"""
