"""What the benchmarks claim, in one closing table: who measures a claim says so here.

Claims go to the file that SURESPAN_CLAIMS names, if it names one: `make bench` does.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

_FILE = "SURESPAN_CLAIMS"


def claim(what: str, *, peer: str, ratio: float, at_least: float | None = None, at_most: float | None = None) -> bool:
    """Say what was measured beside what, and whether the target is kept; it goes into the closing table.

    Args:
        what: the claim, in a few words.
        peer: what it was measured against, in the same run.
        ratio: the measured ratio.
        at_least: the target from below; exactly one of the two is given.
        at_most: the target from above.
    """
    if (at_least is None) == (at_most is None):
        raise ValueError(f"expected one of at_least and at_most, got {at_least} and {at_most}")
    ratio = float(ratio)  # numpy's own is no JSON
    kept = ratio >= at_least if at_least is not None else ratio <= float(at_most or 0.0)
    target = f"at least {at_least:g}" if at_least is not None else f"at most {at_most:g}"
    row = {"what": what, "peer": peer, "ratio": ratio, "target": target, "kept": kept, "file": Path(sys.argv[0]).stem}
    if _FILE in os.environ:
        with Path(os.environ[_FILE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    return kept


def print_table(claims: Path) -> None:
    """Print what was claimed, from the file that it was written to."""
    rows = [json.loads(line) for line in claims.read_text(encoding="utf-8").splitlines()]
    print("| claim | beside | ratio | target | | measured by |\n|---|---|---|---|---|---|")
    for row in rows:
        said = "kept" if row["kept"] else "**missed**"
        print(f"| {row['what']} | {row['peer']} | {row['ratio']:.3g} | {row['target']} | {said} | {row['file']} |")
    print(f"\n{sum(row['kept'] for row in rows)} of {len(rows)} kept")
