"""A function takes what it captures with it."""

import ray


def maker(name):
    values = [name]

    @ray.remote
    def append(x):
        values.append(x)
        return list(values)

    return append, values


append, values = maker("a")
print(ray.get(append.remote("b")), values)
