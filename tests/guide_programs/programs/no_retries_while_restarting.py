"""A call without retries does not wait for a restart."""

import os
import time

import ray


@ray.remote(max_restarts=1)
class Fragile:
    def die(self):
        os._exit(1)

    def ping(self):
        return "pong"


fragile = Fragile.remote()
try:
    ray.get(fragile.die.remote())
except ray.exceptions.ActorUnavailableError:
    print("unavailable")
while True:
    try:
        print(ray.get(fragile.ping.remote()))
        break
    except ray.exceptions.ActorUnavailableError:
        time.sleep(0.05)
try:
    ray.get(fragile.die.remote())
except ray.exceptions.ActorDiedError:
    print("died")
