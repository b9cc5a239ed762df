"""The routes: Label Studio's contract, our own interface under /api/v1, metrics; with errors, logs and security."""
