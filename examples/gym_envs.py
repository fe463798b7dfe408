"""`gym` as programs of 2017 know it: `gymnasium`, with the Atari games under their names (`Pong-v0`, `ALE/Pong-v5`).

gymnasium finds those only after ale-py has registered them, in each process: a worker that unpickles an actor which
uses this module imports it, and has them.
"""

import ale_py
import gymnasium

gymnasium.register_envs(ale_py)
make = gymnasium.make

__all__ = ["make"]
