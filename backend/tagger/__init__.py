"""Text to chain potentials: tokens, sentences, language, readers, the bundled model and its training.

Start at `tagger.load_tagger`; `spans` turns characters into tokens and back; `readers` reads labelled files.
"""
