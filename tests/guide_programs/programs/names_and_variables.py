"""What the runtime context calls a task, and variables of an environment that name others."""

import os

import ray


@ray.remote
def function():
    context = ray.get_runtime_context()
    return context.get_task_function_name().rpartition(".")[2], context.get_task_name()


@ray.remote
class Keeper:
    def __init__(self):
        self.made_in = ray.get_runtime_context().get_task_name()

    def method(self):
        context = ray.get_runtime_context()
        names = context.get_task_function_name().split(".")[1:], context.get_task_name(), context.get_actor_name()
        return self.made_in, *names


@ray.remote
def variable(name):
    return os.environ.get(name)


print(ray.get(function.remote()), ray.get(function.options(name="other").remote()))
keeper = Keeper.remote()
print(ray.get(keeper.method.remote()), ray.get(keeper.method.options(name="other").remote()))
print(ray.get(Keeper.options(name="kept").remote().method.remote())[1:])
variables = {"FIRST": "1", "SECOND": "${FIRST}:2", "THIRD": "${NOT_SET_ANYWHERE}:3"}
told = variable.options(runtime_env={"env_vars": variables})
print(ray.get([told.remote(name) for name in variables]))
