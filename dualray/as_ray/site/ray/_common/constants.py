"""Ray's names of labels and resources that suites read."""

from dualray.as_ray.refusals import refusing

HEAD_NODE_RESOURCE_NAME = "node:__internal_head__"
RAY_NODE_ID_KEY = "ray.io/node-id"

__all__ = ["HEAD_NODE_RESOURCE_NAME", "RAY_NODE_ID_KEY"]

__getattr__ = refusing("ray._common.constants")
