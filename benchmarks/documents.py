"""A word of a long document costs what a word of a sentence costs: processor seconds and memory, 10 to 100,000 words.

    python benchmarks/documents.py

The peer is the same model on single sentences, one text each, in the same run: the ratio is of processor seconds a
word. Memory is what the process's peak grows by; each size has a process of its own.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from pathlib import Path

from _claims import claim

SIZES = (10, 100, 1_000, 10_000, 100_000)
ALLOWED = 1.5  # times the processor time a word of single sentences
SENTENCES = (
    "Jordan Miller met Angela Merkel in Berlin.",
    "Washington beat Manchester in the last minute of the game.",
    "It rained all day, and nobody came.",
    "May went to Reading to see Charlotte Apple and Amazon of Jordan.",
    "The company opened an office in Paris last year, said Maria Lopez of Siemens.",
)


def sentences(words: int) -> list[str]:
    chosen: list[str] = []
    count = 0
    while count < words:
        chosen.append(SENTENCES[len(chosen) % len(SENTENCES)])
        count += len(chosen[-1].split())
    return chosen


def measure(words: int) -> dict[str, float]:
    import torch

    from backend.prediction.answer import answer_of
    from backend.prediction.predictor import Predictor
    from backend.prediction.starter import starter_calibration
    from backend.tagger.loading import load_tagger
    from backend.tagger.model_files import BUNDLED, model_directory

    torch.set_num_threads(1)
    tagger = load_tagger()
    predictor = Predictor(tagger, starter_calibration(tagger, Path(model_directory(BUNDLED))))
    predictor.predict(["Anna met Bob. They talked."])
    parts = sentences(words)
    text = " ".join(parts)
    begun = time.process_time()
    for first in range(0, len(parts), 64):
        for each in predictor.predict(parts[first : first + 64]):
            answer_of(each)
    alone = time.process_time() - begun
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.process_time()
    (made,) = predictor.predict([text])
    answer = answer_of(made)
    together = time.process_time() - begun
    return {
        "words": len(text.split()),
        "units": answer.units,
        "together": together,
        "alone": alone,
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "kept": len(answer.ranked) / 1024,
        "characters": len(text),
    }


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    print(f"{'words':>8} {'units':>7} {'seconds':>9} {'alone':>9} {'ratio':>7} {'MB more':>8} {'kB kept':>8}")
    failed = False
    for words in SIZES:
        done = subprocess.run([sys.executable, __file__, str(words)], check=True, capture_output=True, text=True)
        found = json.loads(done.stdout.splitlines()[-1])
        ratio = found["together"] / found["alone"]
        kept = words < 1_000 or ratio <= ALLOWED  # below that a clock's tick decides
        failed |= not kept
        if words >= 1_000:
            claim(f"a document of {words:,} words", peer="its sentences alone", ratio=ratio, at_most=ALLOWED)
        print(
            f"{found['words']:8,} {found['units']:7,} {found['together']:9.3f} {found['alone']:9.3f} {ratio:6.2f}x "
            f"{found['megabytes']:8.0f} {found['kept']:8.1f}   {'kept' if kept else 'missed'}",
            flush=True,
        )
    sys.exit(failed)


if __name__ == "__main__":
    main()
