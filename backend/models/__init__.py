"""Which model and thresholds answer for a project now, shared by the service and the worker."""
