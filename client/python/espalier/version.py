"""The version of the package, equal to that of the programs (`espalier version`)."""

__version__ = "0.1.0"
