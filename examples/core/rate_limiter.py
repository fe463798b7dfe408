"""A rate limiter: many clients share a budget of requests a second that one named actor gives out.

Shows a named actor that anybody finds (`get_actor`, `get_if_exists`), a token bucket in its state, clients that are
tasks and wait outside of it, and limits for each key. The limiter keeps a log of what it let through; at the end the
program checks that log: in no window of time was there more than the bucket holds and its rate refills.

    python examples/core/rate_limiter.py --requests 20
    dualray run examples/core/rate_limiter.py --mode sim --nodes 8 -- --requests 1000
"""

import time

import click

import dualray as ray

PLANS = {"free": (50.0, 2), "paid": (200.0, 10)}  # requests a second, and at once


@ray.remote(num_cpus=0)
class RateLimiter:
    """A token bucket for each key. The answer is at once: 0, or in how many seconds to ask again."""

    def __init__(self, plans):
        self.plans = plans
        self.buckets = {}
        self.log = {key: [] for key in plans}

    def acquire(self, key):
        rate, burst = self.plans[key]
        now = time.monotonic()
        tokens, at = self.buckets.get(key, (burst, now))
        tokens = min(burst, tokens + (now - at) * rate)
        granted = tokens >= 1
        self.buckets[key] = (tokens - 1 if granted else tokens, now)
        if granted:
            self.log[key].append(now)
            return 0.0
        return (1 - tokens) / rate

    def get_log(self):
        return self.log


@ray.remote
def client(key, requests):
    """Sends its requests as fast as it may; how many were sent."""
    limiter = ray.get_actor("limiter")
    sent = 0
    while sent < requests:
        delay = ray.get(limiter.acquire.remote(key))
        if delay:
            time.sleep(delay)
        else:
            sent += 1  # here the request would go out
    return sent


def most_beyond(log, rate):
    """The most requests of any window beyond what the rate refills during it: at most the burst, if all is well."""
    return max(
        end - start + 1 - (log[end] - log[start]) * rate for start in range(len(log)) for end in range(start, len(log))
    )


@click.command(context_settings={"show_default": True})
@click.option("--requests", default=8, type=click.IntRange(1), help="Requests of each client.")
@click.option("--clients", default=2, type=click.IntRange(1), help="Clients of each plan.")
def main(requests: int, clients: int) -> None:
    """Let clients of two plans send requests, and check that none got more than its share."""
    ray.init()
    limiter = RateLimiter.options(name="limiter", get_if_exists=True).remote(PLANS)
    again = RateLimiter.options(name="limiter", get_if_exists=True).remote({})  # finds the first one
    sent = {key: [client.remote(key, requests) for _ in range(clients)] for key in PLANS}
    for key, refs in sent.items():
        print(f"{key}: {sum(ray.get(refs))} requests were sent")
    for key, log in ray.get(again.get_log.remote()).items():
        rate, burst = PLANS[key]
        kept = most_beyond(log, rate) <= burst + 1e-6
        print(f"{key}: {rate:g} a second and {burst} at once {'were kept' if kept else 'were NOT kept'}")
    del limiter
    ray.shutdown()


if __name__ == "__main__":
    main()
