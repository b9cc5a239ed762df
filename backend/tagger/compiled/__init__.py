"""The network of hashed words as compiled code: no torch, and the same bits whatever texts share a batch."""
