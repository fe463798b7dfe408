"""What Ray hands to plugins of runtime environments, which dualray does not run."""

from dualray.as_ray.environments import RuntimeEnvContext
from dualray.as_ray.refusals import refusing

__all__ = ["RuntimeEnvContext"]

__getattr__ = refusing("ray._private.runtime_env.context")
