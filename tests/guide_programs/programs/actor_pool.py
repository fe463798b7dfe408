"""Work shared out among actors."""

import ray
from ray.util import ActorPool


@ray.remote(num_cpus=0)
class Worker:
    def double(self, x):
        return 2 * x


pool = ActorPool([Worker.remote() for _ in range(2)])
print(list(pool.map(lambda actor, x: actor.double.remote(x), range(6))))
print(sorted(pool.map_unordered(lambda actor, x: actor.double.remote(x), range(6))))
pool.submit(lambda actor, x: actor.double.remote(x), 21)
print(pool.has_next(), pool.get_next(), pool.has_next(), pool.has_free())
