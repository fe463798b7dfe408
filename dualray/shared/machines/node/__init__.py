"""The machines of one node: its resources and workers, the accounting of its object store, and transfers to it.

A task that does not fit here goes to the head, which chooses another node (machines/head).
"""
