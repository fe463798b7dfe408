"""The control plane's tables in Redis: servers, shards, the client, and the channel on which changes are announced.

The machines decide what is written.
"""
