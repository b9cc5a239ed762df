"""`python -m backend` is `surespan`."""

from backend.cli import main

main(prog_name="surespan")
