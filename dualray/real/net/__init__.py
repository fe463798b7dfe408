"""Bytes between processes: the event loop, frames, connections and their authentication.

Nothing here knows what a task is.
"""
