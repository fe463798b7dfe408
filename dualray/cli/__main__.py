"""`python -m dualray.cli`: the command line without its console script."""

from dualray.cli import app_main

if __name__ == "__main__":
    app_main()
