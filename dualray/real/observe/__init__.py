"""A running session as people read it: logs, output of workers, stacks, counters and metrics.

Nothing here changes a run.
"""
