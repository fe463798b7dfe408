"""No more than four tasks under way: wait before the next."""

import ray


@ray.remote
def work(x):
    return x + 1


pending, done = [], []
for i in range(12):
    if len(pending) >= 4:
        ready, pending = ray.wait(pending, num_returns=1)
        done += ray.get(ready)
    pending.append(work.remote(i))
done += ray.get(pending)
print(sorted(done))
