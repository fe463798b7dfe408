"""The games that A3C plays, as its policy sees them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from examples import gym_envs as gym

SIDE = 40


class Picture(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The field of an Atari game, 160 x 160 pixels in colour, as 40 x 40 shades of grey between 0 and 1.

    The OpenAI Universe starter agent makes 42 x 42 of it, with OpenCV; 40 divides 160, and needs no interpolation.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self.observation_space = gymnasium.spaces.Box(0, 1, (SIDE, SIDE, 1))

    def observation(self, observation: Any) -> NDArray[np.float32]:
        step = 160 // SIDE
        pixels = observation[34:194, :160].reshape(SIDE, step, SIDE, step, 3)
        return np.asarray(pixels.mean(axis=(1, 3, 4), dtype=np.float32)[..., None] / 255)


def create_env(name: str) -> Any:
    """A game by gymnasium's name, or by one of 2017: `PongDeterministic-v3` has four pictures a step, and repeats no
    action by chance.

    Raises:
        ValueError: its actions are not a few to choose from.
    """
    game, deterministic, version = name.partition("Deterministic-v")
    if deterministic and version in ("0", "3", "4"):
        made = gym.make(f"ALE/{game}-v5", frameskip=4, repeat_action_probability=0.25 * (version == "0"))
    else:
        made = gym.make("ALE/Pong-v5" if name in ("Pong-v0", "Pong-v3") else name)
    if len(made.observation_space.shape or ()) == 3:
        made = Picture(made)
    if not hasattr(made.action_space, "n"):
        raise ValueError(f"{name} has actions {made.action_space}: this program learns to choose one of several")
    return made
