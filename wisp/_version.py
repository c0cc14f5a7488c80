"""The version, in one place: read by the build and by `wisp --version`, importing nothing."""

__version__ = "0.1.0"
