"""`ray.init(logging_config=)`: log records of the program and its workers in one form, with the task that logged them.

The root logger of each process gets a handler that writes to stderr. Workers get it from the setup hook of the
program's runtime environment. In a simulation, all virtual workers log through the handler of the program.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Any, Final

from dualray import runtime
from dualray.runtime_context import RuntimeContext
from dualray.runtime_env import HOOK, call_hook

__all__ = ["LoggingConfig"]

ENCODING_VARIABLE: Final = "RAY_LOGGING_CONFIG_ENCODING"

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}
"""The attributes of each log record; others come from the program or from `_AddContext`."""

_TEXT: Final = "%(asctime)s\t%(levelname)s %(filename)s:%(lineno)s -- %(message)s"


@dataclass(slots=True)
class LoggingConfig:
    """How the program and its workers log.

    Attributes:
        encoding: "TEXT" or "JSON", for a line or a JSON object for each record.
        log_level: the least level that is logged, by name.
        additional_log_standard_attrs: attributes of log records that are written beside Ray's choice, such as "name".

    Raises:
        ValueError: another encoding, or an attribute that log records do not have.
    """

    encoding: str = "TEXT"
    log_level: str = "INFO"
    additional_log_standard_attrs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.encoding not in ("TEXT", "JSON"):
            raise ValueError(f"Invalid encoding type: encoding={self.encoding!r} must be 'TEXT' or 'JSON'")
        for name in self.additional_log_standard_attrs:
            if name not in _STANDARD:
                raise ValueError(
                    f"Unknown python logging standard attribute: additional_log_standard_attrs has {name!r}, but may "
                    f"only have {', '.join(sorted(_STANDARD))}"
                )

    def to_dict(self) -> dict[str, object]:
        """The settings by name."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> LoggingConfig:
        """Made of a dict; names that are no settings are ignored."""
        return cls(**{each.name: d[each.name] for each in fields(cls) if each.name in d})

    def configure(self) -> None:
        """Have this process log so."""
        formatter: logging.Formatter = _JsonFormatter(self) if self.encoding == "JSON" else _TextFormatter(self)
        handler = _Handler()
        handler.setLevel(self.log_level)
        handler.setFormatter(formatter)
        handler.addFilter(_add_context)
        root = logging.getLogger()
        root.handlers = [each for each in root.handlers if not isinstance(each, _Handler)]
        root.setLevel(self.log_level)
        root.addHandler(handler)


class _Handler(logging.StreamHandler[Any]):
    """The one that `configure` adds, so that the next one takes its place."""


def _add_context(record: logging.LogRecord) -> bool:
    """Give a record the ids of the process, and in a worker the names of its task and actor."""
    here = runtime.current_or_none()
    if here is None:
        return True
    context = RuntimeContext(here)
    found: dict[str, Any] = {
        "job_id": context.get_job_id(),
        "worker_id": context.get_worker_id(),
        "node_id": context.get_node_id(),
    }
    if context.get_task_id() or context.get_actor_id():
        found["actor_id"] = context.get_actor_id()
        found["task_id"] = context.get_task_id()
        found["task_name"] = context.get_task_name()
        found["task_func_name"] = context.get_task_function_name()
        found["actor_name"] = context.get_actor_name()
    for name, value in found.items():
        if value:
            setattr(record, name, value)
    return True


class _WithContext(logging.Formatter):
    def __init__(self, config: LoggingConfig) -> None:
        super().__init__(_TEXT)
        self._chosen = config.additional_log_standard_attrs

    def context(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the other attributes of a record by name: those that the user chose, and those of its task."""
        found = {name: getattr(record, name, None) for name in self._chosen}
        found |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        return {**found, "timestamp_ns": round(record.created * 1e9)}


class _TextFormatter(_WithContext):
    def format(self, record: logging.LogRecord) -> str:
        added = " ".join(f"{name}={value}" for name, value in self.context(record).items())
        return f"{super().format(record)} {added}"


class _JsonFormatter(_WithContext):
    def format(self, record: logging.LogRecord) -> str:
        written: dict[str, Any] = {
            "asctime": self.formatTime(record),
            "levelname": record.levelname,
            "message": record.getMessage(),
            "filename": record.filename,
            "lineno": record.lineno,
            "process": record.process,
        }
        if record.exc_info:
            written["exc_text"] = record.exc_text or self.formatException(record.exc_info)
        return json.dumps({**written, **self.context(record)}, default=str)


class _Chosen:
    """The configuration of this program; None: it has none."""

    config: LoggingConfig | None = None


def names_processes() -> bool:
    """Whether the driver writes the name of a worker before each of its lines: not where the records have it."""
    return _Chosen.config is None


def add(said: dict[str, Any], config: Any, *, is_simulated: bool) -> None:
    """Let the program log as `init(logging_config=)` or Ray's variable says, and let its workers do so.

    Raises:
        TypeError: another thing than a LoggingConfig.
    """
    encoding = os.environ.get(ENCODING_VARIABLE)
    if config is None and encoding:
        config = LoggingConfig(encoding=encoding)
    if config is not None and not isinstance(config, LoggingConfig):
        raise TypeError(f"ray.init: logging_config={config!r} must be a ray.LoggingConfig")
    _Chosen.config = config
    if config is None:
        return
    config.configure()
    if not is_simulated:
        environment = dict(said.get("runtime_env") or {})
        environment[HOOK] = partial(_set_up_worker, config.to_dict(), environment.get(HOOK))
        said["runtime_env"] = environment
    logging.getLogger("ray").info("dualray runs this program under the name ray")


def _set_up_worker(config: Mapping[str, Any], hook: str | Callable[[], object] | None) -> None:
    """The setup hook of workers: the program's own comes after this one."""
    LoggingConfig.from_dict(config).configure()
    if hook is not None:
        call_hook(hook)
