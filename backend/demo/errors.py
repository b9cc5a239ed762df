"""What can go wrong with the demonstration; every message says what to do."""

from backend.errors import BackendError


class DemoError(BackendError):
    """The demonstration cannot go on: a port is taken, a package cannot be installed, a server did not start."""
