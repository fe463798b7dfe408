"""TensorFlow 1 for programs that know no other: `import dualray.experimental.tf1 as tf`.

This is `tensorflow.compat.v1` in graph mode. A program that calls `tf.disable_v2_behavior()` itself changes the process
that it runs in, and no other: a function or actor class that refers to this module takes graph mode along, because
every process that loads it imports this module.

Each process has a default graph and a default session of its own. In sim mode all processes share one interpreter, and
one thread: TensorFlow's stacks of defaults are then asked for the process that runs, so that virtual workers build
their networks apart, with equal names for equal variables, as real ones do; also when one of them waits in the middle
of a `with graph.as_default()`.

Raises:
    ModuleNotFoundError: TensorFlow is not installed: `pip install 'dualray[tensorflow]'`.
"""

from __future__ import annotations

from typing import Any

from tensorflow.compat import v1

from dualray.experimental.tf_stacks import take_over

_verbosity = v1.logging.get_verbosity()
v1.logging.set_verbosity(v1.logging.ERROR)  # who imports this module knows what it does
v1.disable_v2_behavior()
v1.logging.set_verbosity(_verbosity)
take_over()


def __getattr__(name: str) -> Any:
    return getattr(v1, name)


def __dir__() -> list[str]:
    return dir(v1)
