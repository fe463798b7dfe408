"""Classes made in a loop keep the loop's variables as they were when each class was pickled."""

# ruff: noqa: B023 - the program is about variables of loops

import ray


def make():
    actors = []
    for number in range(3):
        box = [number]

        def helper():
            return 10 * number

        @ray.remote(num_cpus=0)
        class Worker:
            tag = number

            def all(self):
                box.append(0)
                return number, helper(), self.of_property, self.tag, self.of_static(), box

            @property
            def of_property(self):
                return number

            @staticmethod
            def of_static():
                return number

        actors.append(Worker.remote())
    number = 99
    box[0] = 77
    print(ray.get([actor.all.remote() for actor in actors]))

    level = 1

    @ray.remote(num_cpus=0)
    class Late:
        def get(self):
            return level

    @ray.remote
    def late():
        return level

    first = Late.remote()
    print(ray.get([first.get.remote(), late.remote()]))
    level = 2
    print(ray.get([first.get.remote(), Late.remote().get.remote(), late.remote()]))


make()
