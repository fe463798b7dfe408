"""Transfers between two actors; what an actor refuses is an exception of the task that asked."""

import ray


class InsufficientFundsError(Exception):
    def __init__(self, owner, missing):
        super().__init__(f"{owner} lacks {missing}")
        self.owner, self.missing = owner, missing

    def __reduce__(self):
        return InsufficientFundsError, (self.owner, self.missing)


@ray.remote(num_cpus=0)
class Account:
    def __init__(self, owner, balance=0):
        self.owner, self.balance = owner, balance

    def add(self, amount):
        if self.balance + amount < 0:
            raise InsufficientFundsError(self.owner, -self.balance - amount)
        self.balance += amount
        return self.balance


@ray.remote
def transfer(source, target, amount):
    ray.get(source.add.remote(-amount))
    return ray.get(target.add.remote(amount))


ada, ben = Account.remote("ada", balance=10), Account.remote("ben")
for amount in (4, 5, 6):
    try:
        print(amount, ray.get(transfer.remote(ada, ben, amount)))
    except InsufficientFundsError as error:
        print(amount, "refused:", error.owner, error.missing, isinstance(error, ray.exceptions.RayTaskError))
        print(type(error.cause).__name__, str(error.cause).splitlines()[-1].split(": ")[-1])
print(ray.get([ada.add.remote(0), ben.add.remote(0)]))
ready, waiting = ray.wait([transfer.remote(ben, ada, 100), transfer.remote(ben, ada, 1)], num_returns=2)
print(len(ready), waiting)
print(ray.get([ada.add.remote(0), ben.add.remote(0)]))
