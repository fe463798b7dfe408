"""A supervisor makes, counts and replaces its children; the children end with it."""

import os
import time

import ray


@ray.remote(num_cpus=0)
class Child:
    def __init__(self, name):
        self.name, self.calls = name, 0

    def work(self):
        self.calls += 1
        return f"{self.name}{self.calls}"

    def crash(self):
        os._exit(1)


@ray.remote(num_cpus=0)
class Supervisor:
    def __init__(self, names):
        self.children = {name: Child.options(name=name).remote(name) for name in names}

    def work(self):
        results = []
        for name, child in list(self.children.items()):
            try:
                results.append(ray.get(child.work.remote()))
            except ray.exceptions.RayActorError:
                self.children[name] = Child.options(name=f"{name}-new").remote(name.upper())
                results.append(f"{name} replaced")
        return results

    def child(self, name):
        return self.children[name]


def is_there(name):
    try:
        return ray.get(ray.get_actor(name).work.remote())
    except (ValueError, ray.exceptions.RayActorError):
        return None


supervisor = Supervisor.remote("abc")
print(ray.get(supervisor.work.remote()))
child = ray.get(supervisor.child.remote("b"))
try:
    ray.get(child.crash.remote())
except ray.exceptions.RayActorError as error:
    print(type(error).__name__)
print(ray.get(supervisor.work.remote()))
print(ray.get(supervisor.work.remote()))
print(is_there("a"), is_there("b"), is_there("b-new"))
ray.kill(supervisor)
for _ in range(200):
    if is_there("a") is is_there("b-new") is None:
        break
    time.sleep(0.1)
print(is_there("a"), is_there("b-new"))
