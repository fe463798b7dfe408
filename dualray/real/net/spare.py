"""A process at its limit of open files tells this to the processes that connect to it, so that they do not wait."""

import contextlib
import os
import socket
from collections.abc import Iterator

from dualray.real.net.handshake import refuse_starved


class SpareDescriptor:
    """A descriptor that a process keeps for the time when it can open no other file."""

    def __init__(self) -> None:
        self._fd = -1
        self._open()

    def refuse_waiting(self, listener: socket.socket) -> None:
        """Refuse every connection that waits in the queue of `listener`, which does not block, as long as no file can
        be opened. Without a spare descriptor, they wait."""
        if self._fd < 0:
            self._open()
        while self._fd >= 0 and not _can_open():
            self.close()
            try:
                sock, _ = listener.accept()
            except OSError:  # the queue is empty, or another thread has used the descriptor
                self._open()
                return
            with sock, contextlib.suppress(OSError):  # the process that connected has ended
                sock.setblocking(False)
                refuse_starved(sock)
            self._open()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Close the spare descriptor for a while, so that the caller can open one file."""
        self.close()
        try:
            yield
        finally:
            self._open()

    def close(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        with contextlib.suppress(OSError):  # another thread took it; later there may be room
            self._fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _can_open() -> bool:
    """Whether this process can open a file again: then it takes the connections that wait."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
