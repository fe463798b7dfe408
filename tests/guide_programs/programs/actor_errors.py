"""A method's error leaves the actor as it is; a constructor's does not."""

import ray


@ray.remote
class Account:
    def __init__(self, balance):
        if balance < 0:
            raise ValueError("negative")
        self.balance = balance

    def take(self, amount):
        if amount > self.balance:
            raise RuntimeError(f"only {self.balance}")
        self.balance -= amount
        return self.balance


account = Account.remote(10)
try:
    ray.get(account.take.remote(11))
except RuntimeError as error:
    print(error.cause)
print(ray.get(account.take.remote(4)))
try:
    ray.get(Account.remote(-1).take.remote(1))
except ray.exceptions.ActorDiedError as error:
    print("ActorDiedError", "negative" in str(error), isinstance(error, ray.exceptions.RayActorError))
