"""Exact inference on linear chains: k-best labelings, probabilities and entity marginals (METHODS 1 and 2)."""
