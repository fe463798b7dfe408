"""The pool of the standard library's `multiprocessing`: see pool.py. The names are those of Ray's module."""

from multiprocessing import JoinableQueue

from dualray.util.multiprocessing.pool import AsyncResult, IMapIterator, Pool, TimeoutError  # noqa: A004 - as there

__all__ = ["AsyncResult", "IMapIterator", "JoinableQueue", "Pool", "TimeoutError"]
