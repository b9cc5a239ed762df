"""Work in the background: which kinds of jobs there are, and what one is given to work with."""
