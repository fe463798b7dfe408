"""`python -m dualray`: the command line, for an interpreter whose console scripts are not on PATH."""

from dualray.cli import app_main

if __name__ == "__main__":
    app_main()
