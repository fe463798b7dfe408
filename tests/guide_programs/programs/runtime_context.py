"""What a task and an actor know of themselves."""

import ray


@ray.remote
def of_task():
    context = ray.get_runtime_context()
    return context.get_task_name(), context.get_actor_id(), len(context.get_node_id()) > 0


@ray.remote(num_cpus=1)
class OfActor:
    def ids(self):
        context = ray.get_runtime_context()
        return context.get_actor_id() is not None, context.was_current_actor_reconstructed, context.get_actor_name()

    def resources(self):
        return ray.get_runtime_context().get_assigned_resources()


print(ray.get(of_task.options(name="named").remote()))
actor = OfActor.options(name="me").remote()
print(ray.get(actor.ids.remote()), ray.get(actor.resources.remote()))
print(ray.get_runtime_context().get_actor_id())
