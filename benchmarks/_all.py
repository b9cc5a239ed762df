"""Run the benchmarks one after the other and print what they claim in one closing table.

    python benchmarks/_all.py [--full]

Without --full those that grow something by powers of ten stop earlier, so that all of them take minutes. One that needs
labelled data says so and is left out: figures of those are in docs/results.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _claims import print_table

HERE = Path(__file__).parent
# What is handed to a benchmark where the full size takes more than a minute or two.
SHORT: dict[str, tuple[str, ...]] = {
    "dashboard": ("--rows", "100000", "--tasks", "20000"),
    "encoder": ("--lists", "1", "--memory-texts", "5000"),
    "encoder_service": ("--tasks", "100"),
    "flood": ("--rounds", "10", "--events", "10000"),
    "loop": ("--rows", "100000", "--events", "20000"),
    "refit": ("--rows", "100000"),
    "service": ("--seconds", "4"),
    "speed": ("--texts", "500", "--runs", "2"),
    "store": ("--rows", "100000"),
    "tagger": ("--memory-texts", "30000"),
    "training_load": ("--labels", "400"),
}


def main() -> None:
    """Run all, also after one has failed."""
    arguments = {} if "--full" in sys.argv[1:] else SHORT
    failed = []
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="ssb") as folder:
        claims = Path(folder) / "claims.jsonl"
        claims.touch()
        for file in sorted(HERE.glob("[a-z]*.py")):
            command = [sys.executable, str(file), *arguments.get(file.stem, ())]
            print(f"==> {' '.join(['benchmarks/' + file.name, *command[2:]])}", flush=True)
            start = time.perf_counter()
            if subprocess.run(command, env=os.environ | {"SURESPAN_CLAIMS": str(claims)}, check=False).returncode:
                failed.append(file.name)
            print(f"    {time.perf_counter() - start:.0f} s\n", flush=True)
        print_table(claims)
    print(f"{(time.perf_counter() - begun) / 60:.0f} minutes in all")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
