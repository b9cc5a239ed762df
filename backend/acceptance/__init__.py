"""Tasks that nobody needs to open: which may be accepted, accepting them, and taking that back (METHODS 12)."""
