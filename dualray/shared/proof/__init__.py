"""The evidence of a run: the log of every decision, the trace of every action, and the check that compares them.

dualray/report reads both and prints the result.
"""
