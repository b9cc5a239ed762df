"""What to look at next: the review queue, where blind tasks stand in it, and second looks at labels."""
