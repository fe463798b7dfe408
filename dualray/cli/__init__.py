"""The command line, one module a group of commands. It reads arguments and prints; it decides nothing about a run."""


def app_main() -> None:
    """The console script `dualray`."""
    from dualray.cli.app import app  # noqa: PLC0415 - a group of commands is imported without the others

    app()
