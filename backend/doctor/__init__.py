"""What is wrong with a set-up, and how to fix it: one module per group of checks, each makes findings."""
