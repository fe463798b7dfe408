"""A task may handle what another raises."""

import ray


@ray.remote
def parse(text):
    return int(text)


@ray.remote
def parse_or(text, default):
    try:
        return ray.get(parse.remote(text))
    except ValueError:
        return default


print(ray.get([parse_or.remote("4", 0), parse_or.remote("four", 0)]))
