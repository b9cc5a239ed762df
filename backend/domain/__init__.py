"""Plain records and words that every part shares. Imports nothing of the rest of backend."""
