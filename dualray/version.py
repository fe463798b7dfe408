"""The version of dualray: that of pyproject.toml."""

__version__ = "0.2.0"
