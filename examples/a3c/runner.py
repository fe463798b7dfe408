"""Playing, on actors: a thread goes on with the game while the actor computes the gradient of what it has played.

The thread plays a rollout with the weights that it was given with the order for it, and is always one rollout ahead:
which weights a rollout was played with does not depend on who was faster, so that a run can be repeated, in both modes.
"""

from __future__ import annotations

import atexit
import queue
import threading
from typing import Any

import numpy as np

from dualray import method
from examples.a3c.envs import create_env
from examples.a3c.policy import Floats, LSTMPolicy, PartialRollout, Weights, process_rollout

GAMMA, LAMBDA = 0.99, 1.0
LOCAL_STEPS = 20
ROLLOUT_WAIT_S = 600.0
STOP_WAIT_S = 60.0

GRADIENT_S = 0.02  # in sim mode: a rollout of CartPole with its gradient, on one core of a 2-core machine of 2025


class RunnerThread(threading.Thread):
    """Interacts with the environment, a rollout at a time, whenever there is an order for one.

    Args:
        env: the game.
        policy: acts; nobody else may give it weights.
        num_local_steps: of a rollout at most; it ends where the game ends.
        seed: of games and of what is drawn in them.
        reward_scale: times which rewards are learned from, so that values are about 1; returns are as the game says.
    """

    def __init__(
        self, env: Any, policy: LSTMPolicy, num_local_steps: int, *, seed: int, reward_scale: float = 1.0
    ) -> None:
        super().__init__(name="a3c-runner", daemon=True)
        self._env, self._policy, self._steps = env, policy, num_local_steps
        self._random, self._reward_scale = np.random.default_rng(seed), reward_scale
        self._orders: queue.Queue[Weights | None] = queue.Queue(maxsize=1)
        self._rollouts: queue.Queue[PartialRollout | BaseException] = queue.Queue(maxsize=1)

    def start_runner(self, weights: Weights) -> None:
        """Begin, with the first rollout."""
        self.start()
        self._orders.put(weights)
        atexit.register(self.stop)  # an interpreter that ends while a thread is inside TensorFlow aborts

    def stop(self) -> None:
        """End, after the rollout that is being played; wait for that. A thread that has ended, or was never started,
        is left alone."""
        if self.is_alive():
            self._orders.put(None)
            self.join(STOP_WAIT_S)

    def pull(self, next_weights: Weights) -> PartialRollout:
        """The rollout that was ordered last, when it is there; the next one is begun.

        Raises:
            Exception: whatever the environment raised.
            queue.Empty: no rollout in ten minutes.
        """
        rollout = self._rollouts.get(timeout=ROLLOUT_WAIT_S)
        if isinstance(rollout, BaseException):
            raise rollout
        self._orders.put(next_weights)
        return rollout

    def run(self) -> None:
        """The thread."""
        try:
            state, _ = self._env.reset(seed=int(self._random.integers(2**31)))
            memory, total, length = self._policy.initial_memory(), 0.0, 0
            while (weights := self._orders.get()) is not None:
                self._policy.set_weights(weights)
                rollout = PartialRollout(memory)
                while len(rollout.actions) < self._steps and not rollout.terminal:
                    likely, value, memory = self._policy.act(state, memory)
                    action = int(min((likely.cumsum() < self._random.random()).sum(), len(likely) - 1))
                    rollout.states.append(state)
                    state, reward, ended, cut, _ = self._env.step(action)
                    rollout.actions.append(action)
                    rollout.rewards.append(float(reward) * self._reward_scale)
                    rollout.values.append(value)
                    total, length, rollout.terminal = total + float(reward), length + 1, ended or cut
                    if rollout.terminal:
                        # Where only the clock has ended it, what would have come counts.
                        rollout.r = 0.0 if ended else self._policy.act(state, memory)[1]
                        rollout.returns.append(total)
                        rollout.lengths.append(length)
                        state, _ = self._env.reset(seed=int(self._random.integers(2**31)))
                        memory, total, length = self._policy.initial_memory(), 0.0, 0
                if not rollout.terminal:
                    rollout.r = self._policy.act(state, memory)[1]
                self._rollouts.put(rollout)
        except BaseException as error:  # noqa: BLE001 - the actor raises it, where it is seen
            self._rollouts.put(error)


class Runner:
    """A game on an actor, and the gradients of what is played in it.

    Args:
        env_name: see `create_env`.
        actor_id: comes back with each gradient.
        seed: of its games.
        reward_scale: see `RunnerThread`.
    """

    def __init__(self, env_name: str, actor_id: int, seed: int, reward_scale: float) -> None:
        env = create_env(env_name)
        shape, actions = env.observation_space.shape, int(env.action_space.n)
        self.id = actor_id
        self.policy = LSTMPolicy(shape, actions, seed)
        acting = LSTMPolicy(shape, actions, seed)
        self.runner = RunnerThread(env, acting, LOCAL_STEPS, seed=seed, reward_scale=reward_scale)
        self._is_started = False

    def pull_batch_from_queue(self, params: Weights) -> PartialRollout:
        """The next partial rollout."""
        if not self._is_started:
            self.runner.start_runner(params)
            self._is_started = True
        return self.runner.pull(params)

    @method(duration=0)
    def stop(self) -> None:
        """Play no more."""
        self.runner.stop()

    @method(duration=GRADIENT_S)
    def compute_gradient(self, params: Weights) -> tuple[list[Floats], dict[str, Any]]:
        """The gradient of the next rollout at these parameters; and who computed it, over how many steps, the returns
        and lengths of games that ended, and numbers for TensorBoard."""
        self.policy.set_weights(params)
        rollout = self.pull_batch_from_queue(params)
        batch = process_rollout(rollout, gamma=GAMMA, lambda_=LAMBDA)
        gradient, summary = self.policy.get_gradients(batch)
        info = {
            "id": self.id,
            "size": len(batch.a),
            "returns": rollout.returns,
            "lengths": rollout.lengths,
            "summary": summary,
        }
        return gradient, info
