"""A broker actor holds the handles of its subscribers and calls them."""

import time

import ray


@ray.remote(num_cpus=0)
class Subscriber:
    def __init__(self, name):
        self.name = name
        self.received = []

    def take(self, topic, message):
        self.received.append((topic, message))
        return f"{self.name}:{len(self.received)}"

    def all(self):
        return self.received


@ray.remote(num_cpus=0)
class Broker:
    def __init__(self):
        self.subscribers = {}

    def subscribe(self, topic, subscriber):
        self.subscribers.setdefault(topic, []).append(subscriber)
        return len(self.subscribers[topic])

    def publish(self, topic, message):
        return [each.take.remote(topic, message) for each in self.subscribers.get(topic, [])]

    def prune(self):
        for topic, subscribers in self.subscribers.items():
            living = []
            for each in subscribers:
                try:
                    ray.get(each.__ray_ready__.remote())
                except ray.exceptions.RayActorError:
                    continue
                living.append(each)
            self.subscribers[topic] = living
        return {topic: len(living) for topic, living in self.subscribers.items()}


broker = Broker.remote()
first, second = Subscriber.remote("first"), Subscriber.remote("second")
print(ray.get([broker.subscribe.remote("news", first), broker.subscribe.remote("news", second)]))
print(ray.get(broker.subscribe.remote("sport", second)))
for topic, message in [("news", "hello"), ("sport", "goal"), ("none", "lost")]:
    answers = ray.get(broker.publish.remote(topic, message))
    print(topic, ray.get(answers))
print(ray.get([first.all.remote(), second.all.remote()]))
ray.kill(second)
living = ray.get(broker.prune.remote())
while living["sport"]:  # the broker can reach the subscriber until its process has ended
    time.sleep(0.05)
    living = ray.get(broker.prune.remote())
print(living)
print(ray.get(ray.get(broker.publish.remote("news", "again"))))
