"""What a project's prelabels are worth: how good they are, what they saved, how far the end is, what to do next."""
