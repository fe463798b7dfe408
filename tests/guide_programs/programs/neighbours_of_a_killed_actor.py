"""What a task has made outlives actors that start and end later."""

import gc
import time

import ray


@ray.remote(num_cpus=0)
class Session:
    def __init__(self, user):
        self.user = user

    def name(self):
        return self.user


@ray.remote
def open_session(user):
    return Session.remote(user), [ray.put(f"token of {user}")]


@ray.remote
def open_sessions(users):
    return [Session.remote(user) for user in users]


sessions = ray.get([open_session.remote(user) for user in ("ada", "ben", "cora", "dan")])
temporary = [Session.remote(f"guest {number}") for number in range(6)]
print(ray.get([guest.name.remote() for guest in temporary]))
for guest in temporary:
    ray.kill(guest)
del temporary, guest
gc.collect()
time.sleep(1)
print(ray.get([session.name.remote() for session, _ in sessions]))
print(ray.get([token for _, [token] in sessions]))

kept, dropped = ray.get(open_sessions.remote(["eve", "finn"]))
print(ray.get([kept.name.remote(), dropped.name.remote()]))
del dropped
gc.collect()
time.sleep(1)
print(ray.get(kept.name.remote()))
