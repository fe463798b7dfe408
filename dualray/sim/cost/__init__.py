"""How long things take in a simulation: every assumed number, its source, and durations measured in a recorded run.

When time passes, and for whom, is decided in kernel, network and processes.
"""
