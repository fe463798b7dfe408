"""joblib, on the cluster."""

import joblib
from ray.util.joblib import register_ray

register_ray()
with joblib.parallel_backend("ray", n_jobs=2):
    print(joblib.Parallel()(joblib.delayed(pow)(i, 2) for i in range(6)))
