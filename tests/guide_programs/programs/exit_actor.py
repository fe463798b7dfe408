"""An actor that ends by its own will."""

import sys

import ray


@ray.remote(max_restarts=2)
class Quitter:
    def quit(self):
        ray.actor.exit_actor()

    def leave(self):
        sys.exit(0)

    def ping(self):
        return "alive"


for how in ("quit", "leave"):
    quitter = Quitter.remote()
    print(ray.get(quitter.ping.remote()))
    try:
        ray.get(getattr(quitter, how).remote())
    except ray.exceptions.ActorDiedError:
        print("dead, by", how)
    try:
        ray.get(quitter.ping.remote())
    except ray.exceptions.ActorDiedError:
        print("not restarted")
