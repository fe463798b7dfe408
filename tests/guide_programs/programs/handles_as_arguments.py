"""Handles go where values go."""

import ray


@ray.remote
class Log:
    def __init__(self):
        self.lines = []

    def add(self, line):
        self.lines.append(line)

    def read(self):
        return sorted(self.lines)


@ray.remote
def work(log, i):
    ray.get(log["handle"].add.remote(f"task {i}"))


log = Log.remote()
ray.get([work.remote({"handle": log}, i) for i in range(4)])
print(ray.get(log.read.remote()))
