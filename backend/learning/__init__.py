"""Projects that learn: when a model is trained from a project's labels, in a process of its own, and when it serves."""
