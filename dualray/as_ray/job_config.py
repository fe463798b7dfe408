"""`ray.job_config.JobConfig` and `ray.LoggingConfig`: what a program says of itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dualray.as_ray.structured_logs import LoggingConfig

__all__ = ["JobConfig", "LoggingConfig"]


class JobConfig:
    """What `ray.init(job_config=)` takes: of it, `runtime_env`, `ray_namespace`, `default_actor_lifetime` and
    the logging config mean something here.

    Args:
        jvm_options, code_search_path: of workers in other languages; ignored.
        runtime_env: as `init(runtime_env=)`.
        metadata: texts by name; kept.
        ray_namespace: as `init(namespace=)`.
        default_actor_lifetime: "non_detached" or "detached".
        more: private arguments of Ray's; ignored.

    Raises:
        ValueError: another default_actor_lifetime.
        TypeError: metadata that is no dict of texts.
    """

    def __init__(
        self,
        jvm_options: Sequence[str] | None = None,
        code_search_path: Sequence[str] | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        metadata: Mapping[str, str] | None = None,
        ray_namespace: str | None = None,
        default_actor_lifetime: str = "non_detached",
        **more: Any,
    ) -> None:
        self.jvm_options = list(jvm_options or ())
        self.code_search_path = list(code_search_path or ())
        self.metadata: dict[str, str] = {}
        for key, value in (metadata or {}).items():
            self.set_metadata(key, value)
        self.ray_namespace = ray_namespace
        self.py_logging_config: LoggingConfig | None = None
        self.set_runtime_env(runtime_env)
        self.set_default_actor_lifetime(default_actor_lifetime)

    def set_metadata(self, key: Any, value: Any) -> None:
        """Keep a text under a name.

        Raises:
            TypeError: one of the two is no text.
        """
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"JobConfig: metadata has {key!r}: {value!r}, but keys and values must be str")
        self.metadata[key] = value

    def set_ray_namespace(self, ray_namespace: str) -> None:
        """Where the names of the program's actors stand."""
        self.ray_namespace = ray_namespace

    def set_runtime_env(self, runtime_env: Mapping[str, Any] | None, validate: bool = False) -> None:
        """The environment of the program's tasks and actors."""
        self.runtime_env = dict(runtime_env or {})

    def set_default_actor_lifetime(self, default_actor_lifetime: str) -> None:
        """How long actors live that say nothing.

        Raises:
            ValueError: neither "detached" nor "non_detached".
        """
        if default_actor_lifetime not in ("detached", "non_detached"):
            raise ValueError(
                f"JobConfig: default_actor_lifetime={default_actor_lifetime!r} must be 'detached' or 'non_detached'"
            )
        self.default_actor_lifetime = default_actor_lifetime

    def set_py_logging_config(self, logging_config: LoggingConfig | None = None) -> None:
        """Have its processes log so: see `init(logging_config=)`."""
        self.py_logging_config = logging_config

    def ensure_logging_config(self) -> None:
        """Have them log in Ray's own form, if nothing else was said."""
        self.py_logging_config = self.py_logging_config or LoggingConfig()

    @classmethod
    def from_json(cls, job_config_json: str | Mapping[str, Any]) -> JobConfig:
        """Made of JSON, or of the dict that it stands for.

        Raises:
            ValueError: it is no JSON.
        """
        said = json.loads(job_config_json) if isinstance(job_config_json, str) else job_config_json
        known = ("jvm_options", "code_search_path", "runtime_env", "metadata", "ray_namespace")
        lifetime = said.get("default_actor_lifetime", "non_detached")
        return cls(**{name: said.get(name) for name in known}, default_actor_lifetime=lifetime.lower())
