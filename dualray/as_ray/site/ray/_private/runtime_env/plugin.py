"""What programs derive their plugins of runtime environments from. dualray runs none: it refuses their names."""

from dualray.as_ray.environments import RuntimeEnvPlugin
from dualray.as_ray.refusals import refusing

__all__ = ["RuntimeEnvPlugin"]

__getattr__ = refusing("ray._private.runtime_env.plugin")
