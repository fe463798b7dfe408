"""A method that yields, and an asynchronous one."""

import ray


@ray.remote
class Source:
    def numbers(self, limit):
        for i in range(limit):  # noqa: UP028 - "yield from range" fails on Ray
            yield i

    async def letters(self, text):
        for letter in text:
            yield letter.upper()


@ray.remote
class Plain:
    def numbers(self, limit):
        for i in range(limit):  # noqa: UP028 - as above
            yield i


source, plain = Source.remote(), Plain.remote()
print([ray.get(each) for each in plain.numbers.remote(4)])
print([ray.get(each) for each in source.letters.remote("abc")])
