"""Ray's names of resources, variables and errors that its own public tests and other suites read."""

from dualray.as_ray.error_words import NEVER_REPEATED
from dualray.as_ray.refusals import refusing

DEFAULT_RESOURCES = {"CPU", "GPU", "memory", "object_store_memory"}
DEFAULT_PORT = 6379
DEFAULT_DASHBOARD_PORT = 8265
DEFAULT_TASK_MAX_RETRIES = 3
DEFAULT_OBJECT_STORE_MEMORY_PROPORTION = 0.3
DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES = 200 * 10**9
OBJECT_STORE_MINIMUM_MEMORY_BYTES = 75 * 1024 * 1024
DUPLICATE_REMOTE_FUNCTION_THRESHOLD = 100
ID_SIZE = 28
MIN_RESOURCE_GRANULARITY = 0.0001
LOGGER_LEVEL = "info"
CALL_STACK_LINE_DELIMITER = " | "
SESSION_LATEST = "session_latest"

RAY_ADDRESS_ENVIRONMENT_VARIABLE = "RAY_ADDRESS"
RAY_NAMESPACE_ENVIRONMENT_VARIABLE = "RAY_NAMESPACE"
RAY_OVERRIDE_DASHBOARD_URL = "RAY_OVERRIDE_DASHBOARD_URL"
RESOURCES_ENVIRONMENT_VARIABLE = "RAY_OVERRIDE_RESOURCES"

REMOVED_NODE_ERROR = "node_removed"
WORKER_DIED_PUSH_ERROR = "worker_died"
WORKER_CRASH_PUSH_ERROR = "worker_crash"
WORKER_POOL_LARGE_ERROR = "worker_pool_large"
PICKLING_LARGE_OBJECT_PUSH_ERROR = "pickling_large_object"
PUT_RECONSTRUCTION_PUSH_ERROR = "put_reconstruction"
EXCESS_QUEUEING_WARNING = "excess_queueing_warning"
RESOURCE_DEADLOCK_ERROR = "resource_deadlock"
DASHBOARD_AGENT_DIED_ERROR = "dashboard_agent_died"
MONITOR_DIED_ERROR = "monitor_died"
DEBUG_AUTOSCALING_ERROR = "__autoscaling_error"
DEBUG_AUTOSCALING_STATUS = "__autoscaling_status"
KV_NAMESPACE_FUNCTION_TABLE = b"fun"

TESTING_NEVER_DEDUP_TOKEN = NEVER_REPEATED

PROCESS_TYPE_GCS_SERVER = "gcs_server"
PROCESS_TYPE_RAYLET = "raylet"
PROCESS_TYPE_WORKER = "worker"

__all__ = [name for name in dir() if name.isupper() and name != "NEVER_REPEATED"]

__getattr__ = refusing("ray._private.ray_constants")
