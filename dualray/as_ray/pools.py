"""`ray.util.multiprocessing.Pool`: dualray's, which joins a cluster and answers errors of `imap` as Ray's does."""

from __future__ import annotations

import os
from typing import Any

from dualray.as_ray.initializing import ADDRESS_VARIABLE, init, joins_a_cluster
from dualray.util.multiprocessing import pool

__all__ = ["Pool"]


class Pool(pool.Pool):
    """See `dualray.util.multiprocessing.Pool`. What the function raises is the next result of `imap` and of
    `imap_unordered`, and is not raised there, as on Ray."""

    _raises_in_turn = False

    def _start(self, address: str | None, processes: int | None) -> None:
        """Join the cluster that `ray.init` would join. If there is none, start one with as many CPUs as processes."""
        address = address or os.environ.get(ADDRESS_VARIABLE) or None
        starts = address == "local" or (address is None and not joins_a_cluster())
        given: dict[str, Any] = {"num_cpus": processes} if starts else {}
        init(address, **given)
