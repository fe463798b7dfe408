"""Each actor has globals of its own, as they were when its class was pickled."""

import ray

LOG = ["driver"]
COUNT = 0
RATE = 0.5


class Settings:
    level = 1


SETTINGS = Settings()


def rate_of_helper():
    return RATE


@ray.remote(num_cpus=0)
class Worker:
    def log(self, word):
        LOG.append(word)
        return list(LOG)

    def count(self):
        global COUNT  # noqa: PLW0603 - the program is about it
        COUNT += 1
        return COUNT

    def raise_level(self):
        SETTINGS.level += 1
        return SETTINGS.level, Settings.level

    def rates(self):
        return RATE, rate_of_helper(), self.rate_of_property, self.rate_of_class()

    @property
    def rate_of_property(self):
        return RATE

    @classmethod
    def rate_of_class(cls):
        return RATE


def print_all(workers):
    for worker in workers:
        calls = [worker.log.remote("worker"), worker.count.remote(), worker.raise_level.remote(), worker.rates.remote()]
        print(ray.get(calls))


workers = [Worker.remote() for _ in range(2)]
LOG.append("later")
RATE, SETTINGS.level, COUNT = 0.9, 50, 100
print_all(workers)
RATE, Settings.level = 1.9, 7
print_all([*workers, Worker.remote()])
print(LOG, COUNT, RATE, SETTINGS.level, Settings.level)


class Plain:
    def get(self):
        return rate_of_helper(), len(LOG)


@ray.remote
def ask(plain):
    return plain.get(), rate_of_helper()


print(ray.get(ask.remote(Plain())))
RATE = 2.9
print(ray.get(ask.remote(Plain())))
