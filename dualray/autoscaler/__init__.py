"""Requests to a cluster that grows: `dualray.autoscaler.request_resources(num_cpus=, bundles=)`.

dualray/shared/machines/autoscaler makes the decisions; this package makes none.
"""

from dualray.autoscaler.sdk import request_resources, status

__all__ = ["request_resources", "status"]
