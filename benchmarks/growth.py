"""Predicting and scoring grow in line with the text, whatever it is made of: processor seconds at n and at 8 n.

    python benchmarks/growth.py

Texts of full stops, one-word sentences, capital letters, names: each has made something grow with the square. The bound
is the ratio of the lengths; 1.5 times it is allowed for noise and caches.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from _claims import claim

from backend.domain.records import TextSpan
from backend.prediction.predictor import Predictor
from backend.prediction.scoring import score_labelled
from backend.prediction.starter import starter_calibration
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import BUNDLED, model_directory
from backend.tagger.readers import LabelledText

SHORT, TIMES, ALLOWED = 1_000, 8, 1.5
TEXTS: dict[str, Callable[[int], str]] = {
    "full stops": lambda n: "." * n,
    "one-word sentences": lambda n: "No. " * (n // 2),
    "capital letters": lambda n: " ".join("ABCDEFGH"[i % 8] for i in range(n)),
    "brackets": lambda n: "(" * n,
    "names": lambda n: " ".join(f"Anna Smith{i}" for i in range(n // 2)),
    "unspaced script": lambda n: "安娜在巴黎见到了鲍勃。" * (n // 11),
    "one long word": lambda n: "x" * n,
}


def seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds of a piece of work, the better of two runs."""
    best = float("inf")
    for _ in range(2):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


def main() -> None:
    torch.set_num_threads(1)
    tagger = load_tagger()
    predictor = Predictor(tagger, starter_calibration(tagger, Path(model_directory(BUNDLED))))
    predictor.predict(["Anna met Bob. They talked."])
    failed = False
    bound = f"bound {TIMES}x, {ALLOWED * TIMES:.0f}x allowed"
    print(f"{'text':22} {'work':10} {'seconds':>9} {'at 8 n':>9} {'ratio':>7}   {bound}")
    for name, make in TEXTS.items():
        for what in ("predict", "score"):
            found = []
            for length in (SHORT, SHORT * TIMES):
                text = make(length)
                spans = tuple(TextSpan(*each.span(), "PER") for each in re.finditer(r"Anna Smith\d+", text))
                labelled = LabelledText(text, spans, language="en")
                work = {
                    "predict": lambda text=text: predictor.predict([text]),
                    "score": lambda labelled=labelled: list(score_labelled(tagger, [labelled], chunk=1)),
                }[what]
                found.append(seconds(work))
            ratio = found[1] / max(found[0], 1e-3)
            kept = ratio <= ALLOWED * TIMES
            failed |= not kept
            claim(f"{what}, {name}, {TIMES} times the text", peer="the text", ratio=ratio, at_most=ALLOWED * TIMES)
            print(
                f"{name:22} {what:10} {found[0]:9.3f} {found[1]:9.3f} {ratio:6.1f}x   {'kept' if kept else 'missed'}",
                flush=True,
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
