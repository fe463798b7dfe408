"""A parameter server: one actor keeps the weights of a model, workers pull them and push gradients.

Shows an actor with state that many share, `wait` to take whichever gradient is ready first, and weights that are put
once a round instead of once a worker. The model is a linear regression; with `--mode sync` a round takes the mean of
all gradients, so that its weights are equal in every run; with `--mode async` each gradient is applied when it comes.

    python examples/core/parameter_server.py --rounds 40
    dualray run examples/core/parameter_server.py --mode sim --nodes 11 -- --workers 20
"""

import click
import numpy as np

import dualray as ray

FEATURES = 8


@ray.remote
class ParameterServer:
    """The weights, and how to move them."""

    def __init__(self, learning_rate):
        self.weights = np.zeros(FEATURES)
        self.learning_rate = learning_rate
        self.updates = 0

    def apply_gradients(self, *gradients):
        self.weights = self.weights - self.learning_rate * np.mean(gradients, axis=0)
        self.updates += 1
        return self.weights

    def get_weights(self):
        return self.weights

    def get_updates(self):
        return self.updates


@ray.remote
class Worker:
    """A part of the data, on which it computes gradients of the squared error."""

    def __init__(self, rank, rows):
        generator = np.random.default_rng(rank)
        self.inputs = generator.normal(size=(rows, FEATURES))
        self.targets = self.inputs @ truth() + 0.01 * generator.normal(size=rows)

    def compute_gradient(self, weights):
        errors = self.inputs @ weights - self.targets
        return 2 * self.inputs.T @ errors / len(errors)


def truth():
    """The weights that the data were made with."""
    return np.arange(1, FEATURES + 1, dtype=float)


def train_synchronously(server, workers, rounds):
    """Each round waits for all gradients: the weights never leave the cluster, references are passed on."""
    weights = server.get_weights.remote()
    for _ in range(rounds):
        gradients = [worker.compute_gradient.remote(weights) for worker in workers]
        weights = server.apply_gradients.remote(*gradients)
    return ray.get(weights)


def train_asynchronously(server, workers, rounds):
    """Whoever is ready gets the newest weights and goes on: nobody waits for the slowest."""
    weights = server.get_weights.remote()
    computing = {worker.compute_gradient.remote(weights): worker for worker in workers}
    for _ in range(rounds * len(workers)):
        [gradient], _ = ray.wait(list(computing))
        worker = computing.pop(gradient)
        weights = server.apply_gradients.remote(gradient)
        computing[worker.compute_gradient.remote(weights)] = worker
    return ray.get(server.get_weights.remote())


@click.command(context_settings={"show_default": True})
@click.option("--workers", default=4, type=click.IntRange(1), help="Actors that compute gradients.")
@click.option("--rounds", default=40, type=click.IntRange(1), help="Gradients of each worker.")
@click.option("--rows", default=256, type=click.IntRange(1), help="Rows of data of each worker.")
@click.option("--mode", default="sync", help="sync or async.")
def main(workers: int, rounds: int, rows: int, mode: str) -> None:
    """Train a linear regression with a parameter server."""
    if mode not in ("sync", "async"):
        raise click.BadParameter(f"--mode {mode} must be sync or async")
    ray.init()
    server = ParameterServer.remote(learning_rate=0.1)
    crew = [Worker.remote(rank, rows) for rank in range(workers)]
    train = train_synchronously if mode == "sync" else train_asynchronously
    weights = train(server, crew, rounds)
    print(f"{ray.get(server.get_updates.remote())} updates by {workers} workers")
    print(f"weights: {' '.join(f'{weight:.2f}' for weight in weights)}")
    ray.shutdown()


if __name__ == "__main__":
    main()
