"""Variables of one task, and of one actor."""

import os

import ray


@ray.remote
def read(name):
    return os.environ.get(name)


@ray.remote
class Reader:
    def read(self, name):
        return os.environ.get(name)


environment = {"env_vars": {"GREETING": "hello"}}
print(ray.get(read.options(runtime_env=environment).remote("GREETING")), ray.get(read.remote("GREETING")))
print(ray.get(Reader.options(runtime_env=environment).remote().read.remote("GREETING")))
