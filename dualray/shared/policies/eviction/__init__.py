"""Eviction policies choose which objects leave a full store, and whether they are dropped or written to disk.

The node's store asks them (machines/node/space.py); it says what may leave."""
