"""Virtual time: the queue of events, fibers that wait in it, and the CPU cores that fibers share.

Nothing here knows what a task is.
"""
