"""What the error of a task, of a method and of a constructor says."""

import re

import ray


@ray.remote
def divide(number):
    return 1 / number


@ray.remote
def outer():
    return ray.get(divide.remote(0))


@ray.remote
class Account:
    def __init__(self, amount):
        if amount < 0:
            raise ValueError("no debts")
        self.amount = amount

    def take(self, amount):
        raise KeyError(amount)

    def __repr__(self):
        return f"Account of {self.amount}"


def said(ref):
    try:
        ray.get(ref)
    except ray.exceptions.RayError as error:
        text = re.sub(r"\x1b\[\d+m|actor_id=\w+, ", "", str(error))
        lines = re.sub(r"pid=\d+, ip=[\d.]+", "HERE", text).split("\n")
        shown = [re.sub(r'".*", line \d+', "PLACE", line) for line in lines if "^" not in line]
        print(*shown, sep="\n")
        print(type(error).__name__, [type(arg).__name__ for arg in error.args], error.__class__.__module__)


said(divide.remote(0))
said(divide.options(name="renamed").remote(0))
said(outer.remote())
said(Account.remote(5).take.remote(3))
