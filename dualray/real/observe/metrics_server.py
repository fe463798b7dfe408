"""The HTTP server of a node's metrics: few connections, each for a short time.

It runs within the node manager, and any user of the machine may connect: so whoever connects and says nothing, or says
it slowly, takes one of a few places for a few seconds. Who finds none is hung up on, and is to try again.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from dualray.real.limits import limit_in_words, start_thread

CONNECTIONS_MAX: Final = 16
CONNECTION_S: Final = 10.0
"""A scrape takes a second at most, to ask and to answer."""
_PAUSE_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 1.0

_log = logging.getLogger("dualray")


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_S / 2  # of each read and write

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class calls it
        """Scrapes are no news."""


class MetricsServer(WSGIServer):
    """See the module.

    Args:
        host, port: where to listen; port 0: any that is free.
        registry: what is served.
    Raises:
        OSError: nobody can listen there.
    """

    request_queue_size = CONNECTIONS_MAX

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        super().__init__((host, port), _Handler)
        self.set_app(make_wsgi_app(registry))
        self._lock = threading.Lock()
        self._open: dict[Any, float] = {}
        """When each connection has begun."""
        self._thread = threading.Thread(target=self.serve_forever, name="dualray-metrics", daemon=True)
        start_thread(self._thread)

    def server_bind(self) -> None:
        """Bind, without asking a name server what this machine is called, as the base class does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self.server_close()
        self._thread.join(_CLOSE_TIMEOUT_S)

    def get_request(self) -> tuple[Any, Any]:
        """The next connection; a pause, for else the loop would turn and turn, when none can be had."""
        try:
            return super().get_request()
        except OSError as error:
            _log.error("metrics cannot be served: %s", limit_in_words(error))
            time.sleep(_PAUSE_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, if there is a place."""
        with self._lock:
            is_full = len(self._open) >= CONNECTIONS_MAX
            if not is_full:
                self._open[request] = time.monotonic()
        if is_full:
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self._serve, args=(request, client_address), name="dualray-scrape", daemon=True
        )
        try:
            start_thread(thread)
        except RuntimeError as error:
            _log.error("metrics cannot be served: %s", limit_in_words(error))
            self._let_go(request)

    def _serve(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception as error:  # noqa: BLE001 - whatever a stranger sends, nothing ends but his connection
            _log.debug("a connection to the metrics has ended: %r", error)
        finally:
            self._let_go(request)

    def _let_go(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        self.shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: end connections that have had their time."""
        with self._lock:
            late = [each for each, began_s in self._open.items() if time.monotonic() - began_s > CONNECTION_S]
        for request in late:
            try:
                request.shutdown(socket.SHUT_RDWR)  # its thread sees the end, and closes it
            except OSError:  # it has just ended
                continue
