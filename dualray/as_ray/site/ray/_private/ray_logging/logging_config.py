"""`LoggingConfig` under the name from which some programs import it."""

from dualray.as_ray.refusals import refusing
from dualray.as_ray.structured_logs import LoggingConfig

__all__ = ["LoggingConfig"]

__getattr__ = refusing("ray._private.ray_logging.logging_config")
