"""What the executable `ray` starts, with `python -P`: dualray may lie where this Python does not look."""

import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Run the command; the processes that it starts have the name `ray`, too."""
    if importlib.util.find_spec("dualray") is None:
        sys.path.append(str(Path(__file__).resolve().parents[3]))
    try:
        from dualray.as_ray import install  # noqa: PLC0415 - it is found from here on
        from dualray.cli.rays.app import app  # noqa: PLC0415 - as above
    except ImportError as error:
        sys.stderr.write(
            f"dualray: {sys.executable} cannot import dualray's packages ({error}): set DUALRAY_AS_RAY_PYTHON to the "
            "Python in whose environment dualray is installed\n"
        )
        sys.exit(2)
    install()
    app(prog_name="ray")


if __name__ == "__main__":
    main()
