"""The bytes of objects on one machine: shared memory, files of spilled objects, and copying.

The object store's machine decides what is kept, spilled and evicted.
"""
