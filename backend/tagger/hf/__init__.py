"""Checkpoints of `transformers`: where they lie, their labels, their subwords, and the tagger that runs them."""
