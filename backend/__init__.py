"""The product around `conformal`: everything that touches a model, a database or a network."""

__version__ = "0.1.0"
