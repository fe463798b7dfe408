"""`ray.util.multiprocessing.Pool`: dualray's, whose `imap` answers an error as Ray's does."""

from __future__ import annotations

from dualray.util.multiprocessing import pool

__all__ = ["Pool"]


class Pool(pool.Pool):
    """See `dualray.util.multiprocessing.Pool`. What the function raises is the next result of `imap` and of
    `imap_unordered`, and is not raised there, as on Ray."""

    _raises_in_turn = False
