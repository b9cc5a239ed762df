"""The demonstration: a real Label Studio, the backend and two sample projects on one machine."""
