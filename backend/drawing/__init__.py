"""Charts as SVG, written here: the only way that the product draws. No script, no library, colours by style sheet."""
