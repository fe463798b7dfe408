"""`python -m dualray.cli`, as programs of 0.1.0 start the command line; `python -m dualray` is the same."""

from dualray.cli import app_main

if __name__ == "__main__":
    app_main()
