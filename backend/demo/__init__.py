"""The demonstration: a real Label Studio, the backend and a sample project on one machine."""
