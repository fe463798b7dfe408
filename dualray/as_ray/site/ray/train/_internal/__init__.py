"""`ray.train._internal`: of its modules, xgboost_ray and lightgbm_ray import one."""

from dualray.as_ray.refusals import refusing

__getattr__ = refusing("ray.train._internal")
