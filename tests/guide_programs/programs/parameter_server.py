"""A server that workers ask for weights and give gradients."""

import ray


@ray.remote(num_cpus=0)
class Server:
    def __init__(self, size):
        self.weights = [0] * size

    def apply(self, gradient):
        self.weights = [weight + step for weight, step in zip(self.weights, gradient, strict=True)]

    def read(self):
        return self.weights


@ray.remote
def train(server, worker, rounds):
    for _ in range(rounds):
        size = len(ray.get(server.read.remote()))
        ray.get(server.apply.remote([worker + i for i in range(size)]))


server = Server.remote(3)
ray.get([train.remote(server, worker, 4) for worker in (1, 2)])
print(ray.get(server.read.remote()))
