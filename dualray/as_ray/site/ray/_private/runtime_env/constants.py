"""The name of the variable in which Ray's jobs get their configuration: verl reads it."""

from dualray.as_ray.refusals import refusing

RAY_JOB_CONFIG_JSON_ENV_VAR = "RAY_JOB_CONFIG_JSON_ENV_VAR"

__all__ = ["RAY_JOB_CONFIG_JSON_ENV_VAR"]

__getattr__ = refusing("ray._private.runtime_env.constants")
