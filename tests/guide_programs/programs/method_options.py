"""Methods with several results."""

import ray


@ray.remote
class Pairs:
    @ray.method(num_returns=2)
    def pair(self):
        return "a", "b"

    def triple(self):
        return 1, 2, 3


pairs = Pairs.remote()
first, second = pairs.pair.remote()
print(ray.get([first, second]), ray.get(pairs.triple.options(num_returns=3).remote()))
