"""What nested labels cost, and what learning their outermost layer brings: BC5CDR with invented inner spans.

    python benchmarks/nesting.py [--data DIR]

In a share of the entities of two words and more another label is put on one of the words, as biomedical corpora nest
names. F1 is of the outer entities on 300 texts of the test part. Reads BC5CDR in DIR (or in $SURESPAN_TEST_DATA);
skipped without.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from backend.domain.records import TextSpan
from backend.tagger.entity_f1 import entity_f1
from backend.tagger.linear.learning import learn
from backend.tagger.linear.tagger import LinearTagger
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.tokens import tokenize

TRAIN, TEST = 150, 300
SHARES = (0.1, 0.3, 1.0)


def main() -> None:
    """Print a line for each share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("SURESPAN_TEST_DATA"))
    given = parser.parse_args().data
    if given is None:
        print("skipped: no data given; name their directory with --data")
        return
    data = Path(given) / "bc5cdr"
    train, test = (list(read_labelled(data / f"{part}.tsv.gz").texts) for part in ("train", "test"))
    rng = np.random.default_rng(28)
    chosen = [train[i] for i in rng.permutation(len(train))[:TRAIN]]
    held = [test[i] for i in rng.permutation(len(test))[:TEST]]
    print(f"{'nested':>8} {'of entities':>12} {'of texts':>13} {'left out':>9} {'outermost':>10}   (F1)")
    for share in SHARES:
        nested = [_nest(text, share, rng) for text in chosen]
        inner = [len(after.spans) - len(before.spans) for before, after in zip(chosen, nested, strict=True)]
        entities = sum(len(text.spans) for text in nested)
        without = [text for text, number in zip(nested, inner, strict=True) if not number]
        scores = [entity_f1(LinearTagger.of(learn(texts)), held) for texts in (without, nested)]
        of_texts = sum(map(bool, inner)) / len(inner)
        print(
            f"{share:8.0%} {sum(inner) / entities:12.1%} {of_texts:13.1%} {scores[0]:9.3f} {scores[1]:10.3f}",
            flush=True,
        )


def _nest(text: LabelledText, share: float, rng: np.random.Generator) -> LabelledText:
    """Return a text with an inner span in a share of its entities of two words and more."""
    tokens = tokenize(text.text)
    added = []
    for start, end, _ in text.spans:
        words = [token for token in tokens if start <= token.start and token.end <= end]
        if len(words) > 1 and rng.random() < share:
            word = words[rng.integers(len(words))]
            added.append(TextSpan(word.start, word.end, "Part"))
    return replace(text, spans=(*text.spans, *added))


if __name__ == "__main__":
    main()
