"""Publish and subscribe: one thread reads the channels of a client and calls its subscribers.

Theory of operation. The thread begins with the first subscriber. It alone touches its connection; others wake
it through a channel of its own, and it then asks for the channels that are new. From when `wait_for` has said
that the server confirmed a channel, what is published there is heard, until the connection breaks.

A connection that breaks is made again with growing pauses, and every channel is asked for anew. News that were
published while it was cut off are gone: the subscribers are told of the gap, channel by channel, and read the
tables. A subscriber that fails is logged, and the others hear the news all the same.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from dualray.extras import needs
from dualray.real.limits import start_thread

with needs("A subscription to the control plane", "cluster"):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry


_log = logging.getLogger(__name__)

_LISTEN_S: Final = 1.0
"""A listener that missed its wake-up looks this often whether it shall end."""


class NewsListener:
    """See the module's theory of operation.

    Args:
        socket_path, password: of the server.
        reply_timeout_s: how long it may take for one reply.
        retry_first_s, retry_last_s: the pause before the first attempt to connect again, and the longest one.
    """

    def __init__(
        self,
        socket_path: Path,
        password: str,
        *,
        reply_timeout_s: float,
        retry_first_s: float,
        retry_last_s: float,
    ) -> None:
        # The retries are ours, so that subscribers are told; RESP2 is what every server of the three speaks.
        self._client: Any = redis.Redis(
            unix_socket_path=str(socket_path),
            password=password,
            protocol=2,
            socket_timeout=reply_timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._retry_first_s = retry_first_s
        self._retry_last_s = retry_last_s
        self._wake_channel = f"dualray:wake:{os.getpid()}:{os.urandom(8).hex()}"
        self._lock = threading.Lock()
        self._subscribed = threading.Condition(self._lock)
        self._listeners: dict[str, list[tuple[Callable[[bytes], object], Callable[[], object] | None]]] = {}
        self._confirmed: dict[str, None] = {}  # channels that this connection hears
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, channel: str, fn: Callable[[bytes], object], on_gap: Callable[[], object] | None) -> None:
        with self._lock:
            self._listeners.setdefault(channel, []).append((fn, on_gap))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="dualray-listener", daemon=True)
                start_thread(thread)
                self._thread = thread
        self._wake()

    def wait_for(self, channel: str, timeout_s: float) -> bool:
        with self._subscribed:
            return self._subscribed.wait_for(lambda: channel in self._confirmed, timeout_s)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._wake()
            self._thread.join()
        self._client.close()

    def _wake(self) -> None:
        """If there is no connection to wake, the thread is about to make one and looks at everything anew."""
        with contextlib.suppress(redis.RedisError):
            self._client.publish(self._wake_channel, b"")

    def _run(self) -> None:
        pause_s = self._retry_first_s
        reconnected = False
        while not self._stop.is_set():
            pubsub = self._client.pubsub()
            try:
                pubsub.subscribe(self._wake_channel)
                self._listen(pubsub, reconnected)
            except redis.RedisError as error:
                if self._confirmed:
                    pause_s = self._retry_first_s
                    reconnected = True
                _log.warning("the control plane's subscription failed; the next attempt is in %g s: %s", pause_s, error)
                self._confirmed = {}
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, self._retry_last_s)
            finally:
                pubsub.close()

    def _listen(self, pubsub: Any, reconnected: bool) -> None:
        requested: dict[str, None] = {}
        gaps = dict.fromkeys(self._listeners) if reconnected else {}
        while not self._stop.is_set():
            message = pubsub.get_message(timeout=_LISTEN_S)
            channel = self._wake_channel if message is None else message["channel"].decode()
            if message is None or channel == self._wake_channel:  # it is heard now, or somebody has called
                with self._lock:
                    fresh = [name for name in self._listeners if name not in requested]
                requested.update(dict.fromkeys(fresh))
                if fresh:
                    pubsub.subscribe(*fresh)
            elif message["type"] == "subscribe":
                with self._subscribed:
                    self._confirmed[channel] = None
                    self._subscribed.notify_all()
                if channel in gaps:
                    self._call(channel, None)
            elif message["type"] == "message":
                self._call(channel, message["data"])

    def _call(self, channel: str, payload: bytes | None) -> None:
        for fn, on_gap in list(self._listeners[channel]):
            try:
                if payload is not None:
                    fn(payload)
                elif on_gap is not None:
                    on_gap()
            except Exception:  # noqa: BLE001 - the others shall hear the news all the same
                _log.exception("a subscriber to %s failed", channel)
