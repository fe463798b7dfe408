"""Small scenarios with faults that `explore` would draw, in a simulation and on real processes: the same outcome.

`python -m tests.both_modes --runs 200` says of how many the two modes make the same, and of each other one what each
mode made of it.
"""
