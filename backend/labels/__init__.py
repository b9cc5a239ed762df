"""What becomes of confirmed labels: exports and training sets."""
