"""The core worker: a user's verbs become events of the machines, and their commands become values.

It moves payloads and waits; the machines decide which process runs a task, and when a task runs again.
"""
