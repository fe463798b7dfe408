"""`ray.runtime_env`: a runtime environment as a dict with Ray's constructor and questions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["RuntimeEnv", "RuntimeEnvConfig", "RuntimeEnvContext", "RuntimeEnvPlugin"]


class RuntimeEnvContext:
    """What Ray hands to plugins of runtime environments, which dualray does not run."""


class RuntimeEnvPlugin:
    """What programs derive their plugins of runtime environments from. dualray runs none: it refuses their names in
    `runtime_env=`."""

    name: str | None = None
    priority: int = 10


class RuntimeEnvConfig(dict[str, Any]):
    """How Ray would set an environment up: there is nothing to set up here.

    Args:
        setup_timeout_seconds: how long that may take; ignored.
        eager_install: whether it is done at once; ignored.
        log_files: further files for its log; ignored.

    Raises:
        TypeError: a timeout that is no int.
        ValueError: one that is neither -1 nor above 0.
    """

    def __init__(
        self,
        setup_timeout_seconds: Any = None,
        eager_install: bool = True,
        log_files: Sequence[str] | None = None,
    ) -> None:
        timeout = 600 if setup_timeout_seconds is None else setup_timeout_seconds
        if not isinstance(timeout, int) or isinstance(timeout, bool):
            raise TypeError(f"setup_timeout_seconds must be of type int, got: {type(timeout)}")
        if timeout <= 0 and timeout != -1:
            raise ValueError(f"setup_timeout_seconds={timeout} must be greater than zero or equals to -1")
        super().__init__(setup_timeout_seconds=timeout, eager_install=eager_install, log_files=list(log_files or ()))

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of it."""
        return dict(self)

    @classmethod
    def from_dict(cls, said: Mapping[str, Any]) -> RuntimeEnvConfig:
        """Made of a plain dict."""
        return cls(**said)


_INSTALLED = ("pip", "uv", "conda")


class RuntimeEnv(dict[str, Any]):
    """What `runtime_env=` takes, as a plain dict is taken: what was not given is absent.

    Args:
        py_modules, working_dir, env_vars: see docs/api/tasks.md.
        pip: packages that have to be installed already.
        uv, conda, container, image_uri: kept here, and refused where the environment is used: dualray installs
            nothing.
        config: a RuntimeEnvConfig, or its dict.
        more: what else Ray knows.

    Raises:
        ValueError: more than one of pip, uv and conda.
        TypeError: env_vars that is no dict of texts.
    """

    def __init__(
        self,
        *,
        py_modules: Sequence[Any] | None = None,
        working_dir: str | None = None,
        pip: Any = None,
        conda: Any = None,
        uv: Any = None,
        container: Any = None,
        image_uri: str | None = None,
        env_vars: Any = None,
        config: Mapping[str, Any] | None = None,
        _validate: bool = True,
        **more: Any,
    ) -> None:
        named = {"py_modules": py_modules, "working_dir": working_dir, "pip": pip, "conda": conda, "uv": uv}
        named |= {"container": container, "image_uri": image_uri, "env_vars": env_vars, "config": config}
        super().__init__({name: value for name, value in {**named, **more}.items() if value is not None})
        several = [name for name in _INSTALLED if name in self]
        if len(several) > 1:
            raise ValueError(
                f"The '{several[0]}' field and '{several[1]}' field of runtime_env cannot be specified at the same "
                "time: put all packages into one of the two fields"
            )
        if env_vars is not None and not (
            isinstance(env_vars, Mapping)
            and all(isinstance(name, str) and isinstance(value, str) for name, value in env_vars.items())
        ):
            raise TypeError(f"runtime_env['env_vars'] must be of type Dict[str, str], not {env_vars!r}")

    def to_dict(self) -> dict[str, Any]:
        """A plain dict of it."""
        return dict(self)

    def serialize(self) -> str:
        """It as JSON."""
        return json.dumps(self, sort_keys=True)

    @classmethod
    def deserialize(cls, serialized_runtime_env: str) -> RuntimeEnv:
        """Made of that."""
        return cls(**json.loads(serialized_runtime_env))

    def working_dir_uri(self) -> str | None:
        """Its working directory."""
        return self.get("working_dir")

    def env_vars(self) -> dict[str, str]:
        """Its environment variables."""
        return dict(self.get("env_vars", {}))

    def has_working_dir(self) -> bool:
        """Whether it has one."""
        return bool(self.get("working_dir"))

    def has_pip(self) -> bool:
        """Whether it asks for packages of pip."""
        return bool(self.get("pip"))

    def has_uv(self) -> bool:
        """Whether it asks for packages of uv."""
        return bool(self.get("uv"))

    def has_conda(self) -> bool:
        """Whether it asks for an environment of conda."""
        return bool(self.get("conda"))

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (dict(self),)


def _made(said: dict[str, Any]) -> RuntimeEnv:
    return RuntimeEnv(**said)
