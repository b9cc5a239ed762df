"""Settings shared by all tests."""

import os
from pathlib import Path

import hypothesis

# Numba looks only at the file a kernel stands in, not at those it calls: after an edit, the callers' compiled code
# would stay. Nobody edits an installed package, so this concerns the tests of a working copy only.
_KERNELS = Path(__file__).parents[1] / "conformal" / "trellis" / "kernels"
_NEWEST = max(path.stat().st_mtime for path in _KERNELS.glob("*.py"))
for _index in (_KERNELS / "__pycache__").glob("*.nbi"):
    if _index.stat().st_mtime < _NEWEST:
        _index.unlink(missing_ok=True)

# Quick on a developer's machine, thorough where nobody waits. Never a deadline: machines are noisy.
hypothesis.settings.register_profile("quick", max_examples=50, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=300, deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "thorough" if os.environ.get("CI") else "quick"))
