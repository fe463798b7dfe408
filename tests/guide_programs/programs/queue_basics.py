"""A queue that tasks share."""

import ray
from ray.util.queue import Empty, Full, Queue


@ray.remote
def produce(queue, count):
    for i in range(count):
        queue.put(i)


queue = Queue(maxsize=3, actor_options={"num_cpus": 0})
produced = produce.remote(queue, 6)
print([queue.get(timeout=30) for _ in range(6)], queue.empty())
ray.get(produced)
queue.put_nowait_batch([1, 2, 3])
print(queue.full(), queue.qsize())
for action in (lambda: queue.put_nowait(4), lambda: queue.get_nowait_batch(4), lambda: queue.put(4, timeout=0.05)):
    try:
        action()
    except (Empty, Full) as error:
        print("Empty" if isinstance(error, Empty) else "Full")
print(queue.get_nowait_batch(3))
queue.shutdown()
