"""Settings shared by all tests."""

import os

import hypothesis

# Quick on a developer's machine, thorough where nobody waits. Never a deadline: machines are noisy.
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=300, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "thorough" if os.environ.get("CI") else "quick"))
