"""An actor class with a base, static methods and attributes."""

import ray


class Base:
    kind = "base"

    def hello(self):
        return f"hello from {self.kind}"

    @staticmethod
    def twice(x):
        return 2 * x


class Derived(Base):
    kind = "derived"

    def hello(self):
        return super().hello() + "!"


RemoteDerived = ray.remote(Derived)
actor = RemoteDerived.remote()
print(ray.get([actor.hello.remote(), actor.twice.remote(4)]))
