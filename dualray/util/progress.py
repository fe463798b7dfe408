"""Progress bars for tasks, actors and the driver. The driver draws all bars on its stderr, one below another.

    from dualray.experimental.tqdm_ray import tqdm

On a terminal, the bars are the last lines. Without a terminal, each bar prints a line every few seconds, and a last
line at its end. A worker sends the state of its bars at most once in `flush_interval_s`, so code can update a bar as
often as it likes.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from numbers import Real
from typing import Any, Self

from dualray import runtime
from dualray.progress_bars import DISPLAY, BarState, safe_print

__all__ = ["safe_print", "tqdm"]

_DESCRIPTION_MAX = 200


class tqdm:  # noqa: N801 - Ray's name, and the library's whose bars these look like
    """A progress bar for a task, an actor or the driver.

    Args:
        iterable: what to iterate over. The bar counts its items, and closes at the end.
        desc: text before the bar. dualray shows at most 200 characters of it.
        total: number of units. Default: the length of `iterable`, if it has one.
        unit: what is counted. Default "it".
        position: position of the bar among the bars of its process. 0, the default, is the highest position.
        flush_interval_s: how many seconds a worker waits between two updates that it sends. Default 1. A worker always
            sends the first update, the last update, and the update of a full bar.

    Attributes:
        n: number of finished units.
        total: the argument `total`, or None if the number of units is not known.
    """

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: float | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        if total is None and iterable is not None:
            try:
                total = len(iterable)  # type: ignore[arg-type]  # it may have none
            except TypeError:
                total = None
        _check_number("total", total)
        _check_number("position", position)
        _check_number("flush_interval_s", flush_interval_s)
        self.n: float = 0
        self.total = total
        self._iterable = iterable
        self._description = desc or ""
        self._unit = unit or "it"
        self._position = position or 0
        self._flush_interval_s = 1.0 if flush_interval_s is None else flush_interval_s
        self._key = uuid.uuid4().hex
        self._is_closed = False
        self._started_s = self._sent_s = time.monotonic()
        self._send(self._sent_s)

    def update(self, n: float = 1) -> None:
        """Add a number of finished units."""
        self.n += n
        self._flush(is_due=self.total is not None and self.n >= self.total)

    def set_description(self, desc: str | None) -> None:
        """Change the text before the bar."""
        self._description = desc or ""
        self._flush()

    def refresh(self) -> None:
        """Send the bar's state if `flush_interval_s` has passed. Assigning `n` or `total` alone sends nothing."""
        self._flush()

    def close(self) -> None:
        """Draw the bar for the last time. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._send(time.monotonic())

    def __iter__(self) -> Iterator[Any]:
        if self._iterable is None:
            raise ValueError("No iterable provided: iterate over tqdm(iterable), or call update() of tqdm(total=...)")
        try:
            for item in self._iterable:
                yield item
                self.update(1)
        finally:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _flush(self, *, is_due: bool = False) -> None:
        now_s = time.monotonic()
        if not self._is_closed and (is_due or now_s - self._sent_s >= self._flush_interval_s):
            self._send(now_s)

    def _send(self, now_s: float) -> None:
        self._sent_s = now_s
        state = BarState(
            key=self._key,
            description=self._description[:_DESCRIPTION_MAX],
            unit=self._unit[:_DESCRIPTION_MAX],
            position=self._position,
            done=float(self.n),
            total=None if self.total is None else float(self.total),
            elapsed_s=now_s - self._started_s,
            is_closed=self._is_closed,
        )
        current = runtime.current_or_none()
        if current is None:
            DISPLAY.take("", state)
        else:
            current.show_bar(state)


def _check_number(name: str, number: Any) -> None:
    if number is not None and (isinstance(number, bool) or not isinstance(number, Real)):
        raise TypeError(f"tqdm: {name}={number!r} must be a number")
