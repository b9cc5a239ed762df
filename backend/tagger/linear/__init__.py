"""A linear-chain CRF on sparse features of words: good from a few dozen labels, trained in seconds (METHODS 13.6)."""
