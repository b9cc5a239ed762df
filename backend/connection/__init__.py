"""A project of Label Studio is wired to the backend, and the wiring taken back."""
