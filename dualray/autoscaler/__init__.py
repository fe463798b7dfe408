"""What a program asks of a cluster that grows: `dualray.autoscaler.request_resources(num_cpus=, bundles=)`.

The decisions are made in dualray/shared/machines/autoscaler; none is made here.
"""

from dualray.autoscaler.sdk import request_resources, status

__all__ = ["request_resources", "status"]
