"""Whole campaigns on a labelled file, played with the product's own loop and people of stated habits."""
