"""Attributes of handles, abstract classes, and what a class shares."""

import abc

import ray


class Shape(abc.ABC):
    sides = 0

    def __init__(self, size=1, *, colour="red"):
        self.size, self.colour = size, colour

    @abc.abstractmethod
    def area(self): ...

    @staticmethod
    def double(value):
        return 2 * value

    @classmethod
    def kind(cls):
        return cls.__name__

    def described(self, /, prefix, *parts, end="."):
        return f"{prefix} {self.colour} {self.area()} {parts}{end}"


class Square(Shape):
    sides = 4

    def area(self):
        return self.size**2


try:
    ray.remote(Shape)
except TypeError as error:
    print(type(error).__name__, "abstract" in str(error))

SquareActor = ray.remote(num_cpus=0)(Square)
square = SquareActor.remote(3, colour="blue")
square.note = "the first"
print(square.note, hasattr(ray.get(ray.put(square)), "note"))
print(ray.get(square.described.remote("a", 1, 2, end="!")))
print(ray.get([square.double.remote(4), square.kind.remote()]))
for call in (
    lambda: square.described.remote(),
    lambda: square.area.remote(1),
    lambda: SquareActor.remote(size=1, shape=2),
):
    try:
        call()
    except TypeError as error:
        print(type(error).__name__)
try:
    print(square.volume)
except AttributeError as error:
    print(type(error).__name__)
