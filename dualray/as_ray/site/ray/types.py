"""`ray.types`: the type of references, under the name for annotations."""

from dualray.object_ref import ObjectRef

__all__ = ["ObjectRef"]
