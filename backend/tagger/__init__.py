"""Text to chain potentials: tokens, sentences, language, readers, the bundled model and its training."""
