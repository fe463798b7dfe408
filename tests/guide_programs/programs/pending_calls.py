"""A caller that has too many calls under way is told."""

import time

import ray


@ray.remote(max_pending_calls=2)
class Slow:
    def work(self):
        time.sleep(0.5)
        return "done"


slow = Slow.remote()
refs = [slow.work.remote() for _ in range(2)]
try:
    for _ in range(5):
        slow.work.remote()
except ray.exceptions.PendingCallsLimitExceeded:
    print("PendingCallsLimitExceeded")
print(ray.get(refs))
