"""A recorded run, simulated again on another cluster: its tasks take the time that they took.

Decision logs are replayed elsewhere: dualray/shared/proof.
"""
