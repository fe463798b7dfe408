"""`ray.util.placement_group`, of dualray."""

from dualray.as_ray.group_checks import *
from dualray.as_ray.group_checks import _validate_bundle_label_selector, _validate_bundles  # noqa: F401 - as above
from dualray.as_ray.refusals import refusing
from dualray.util.placement_group import *
from dualray.util.placement_group import VALID_PLACEMENT_GROUP_STRATEGIES  # noqa: F401 - Ray has it here

__getattr__ = refusing("ray.util.placement_group")
