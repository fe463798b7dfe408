"""`ray.train.huggingface`: of its modules, dualray has `transformers`."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.train.huggingface")
