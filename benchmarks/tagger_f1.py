"""Entity F1 of a tagger, how it bears other letter case, and false entities in entity-free text.

    python benchmarks/tagger_f1.py [--full] [--model bundled] [--data DIR] [--files FILE...]

Reads the WikiNEuRal test files in DIR (or in $SURESPAN_TEST_DATA/wikineural), or any labelled files, through the live
pipeline: words joined with one space, live tokens, sentences and language, best labeling of the exact chain. Without
--full the first 1,000 sentences of each file. Every F1 is counted twice, by us and by seqeval, and the script stops if
they differ. The last lines compare with the prototype as ratios.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from seqeval.metrics import f1_score

import conformal
from backend.tagger.entity_f1 import EntityCounter
from backend.tagger.loading import load_tagger
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.spans import to_token_spans

# Entity F1 in percent on the first 1,000 test sentences, as given for the prototype.
PROTOTYPE = {"de": 89, "en": 83, "es": 93, "fr": 91, "it": 87, "nl": 90, "pl": 89, "pt": 91, "ru": 75}
CHUNK = 2_000


def measure(
    tagger: NetworkTagger, texts: Sequence[LabelledText], *, own_language: bool = False
) -> tuple[EntityCounter, float, int]:
    """Return our counts, seqeval's F1 and the number of inexpressible true spans."""
    counter = EntityCounter()
    true_tags: list[list[str]] = []
    found_tags: list[list[str]] = []
    lost = 0
    space = tagger.space
    for begin in range(0, len(texts), CHUNK):
        part = texts[begin : begin + CHUNK]
        fields = [text.language for text in part] if own_language else None
        tagged = tagger.potentials([text.text for text in part], languages=fields)
        for text, one, best in zip(part, tagged, conformal.kbest([t.potentials for t in tagged], 1), strict=True):
            aligned = to_token_spans(text.spans, one.tokens, text=text.text, boundaries=one.boundaries)
            found = space.spans(best.labels[0])
            # A true entity that no labeling can say counts as missed: F1 is of the whole pipeline.
            missed = [("?", i, item.span.label) for i, item in enumerate(aligned.inexpressible)]
            lost += len(missed)
            counter.add([*aligned.spans, *missed], found)
            pad = ["O", *(t for item in aligned.inexpressible for t in (f"B-{item.span.label}", "O"))]
            true_tags.append(space.decode(space.ids(aligned.spans, len(one.tokens))) + pad)
            found_tags.append(space.decode(space.ids(found, len(one.tokens))) + ["O"] * len(pad))
    theirs = float(f1_score(true_tags, found_tags))
    if abs(theirs - counter.total.f1) > 1e-9:
        raise SystemExit(f"seqeval counts another F1: {theirs} against {counter.total.f1}")
    return counter, theirs, lost


def recase(texts: Sequence[LabelledText], change: Callable[[str], str]) -> list[LabelledText]:
    """Change the case of texts whose length it leaves alone (spans keep their offsets)."""
    made = [(text, change(text.text)) for text in texts]
    return [LabelledText(new, text.spans, text.language) for text, new in made if len(new) == len(text.text)]


def clauses(texts: Sequence[LabelledText]) -> list[LabelledText]:
    """Entity-free stretches of at least six words between the entities of each text, dressed as sentences."""
    found: list[LabelledText] = []
    for text in texts:
        edges = [0, *(place for span in text.spans for place in (span.start, span.end)), len(text.text)]
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            words = text.text[start:end].strip(" ,;:-–()").split()
            if len(words) >= 6 and len(re.findall(r"\w{2,}", " ".join(words))) >= 5:
                sentence = " ".join(words)
                sentence = sentence[:1].upper() + sentence[1:] + ("" if sentence[-1] in ".!?" else " .")
                found.append(LabelledText(sentence, (), text.language))
    return found


def false_entities(tagger: NetworkTagger, texts: Sequence[LabelledText]) -> tuple[float, float]:
    """Return false entities per 1,000 tokens and the share of texts with one."""
    entities = tokens = touched = 0
    for begin in range(0, len(texts), CHUNK):
        tagged = tagger.potentials([text.text for text in texts[begin : begin + CHUNK]])
        for one, best in zip(tagged, conformal.kbest([t.potentials for t in tagged], 1), strict=True):
            found = tagger.space.spans(best.labels[0])
            entities += len(found)
            tokens += len(one.tokens)
            touched += bool(found)
    return 1000 * entities / max(1, tokens), touched / max(1, len(texts))


def report_files(tagger: NetworkTagger, files: Sequence[Path], limit: int | None) -> None:
    """F1 of any labelled files."""
    for path in files:
        texts = read_labelled(path).texts[:limit]
        counter, theirs, lost = measure(tagger, texts)
        total = counter.total
        print(
            f"{path.name}: {len(texts)} texts, precision {total.precision:.4f} recall {total.recall:.4f} "
            f"F1 {total.f1:.4f} (seqeval {theirs:.4f}), whole texts right {counter.exact / counter.texts:.3f}, "
            f"{lost} true spans inexpressible"
        )
        for name, counts in counter.by_class.items():
            print(f"  {name:5} precision {counts.precision:.4f} recall {counts.recall:.4f} F1 {counts.f1:.4f}")


def report_nine(tagger: NetworkTagger, data: Path, limit: int | None) -> None:
    """F1 by language with the case variants and the entity-free text."""
    header = "lang texts   P     R     F1    seqeval exact lost | upper lower title | FP/1000 share"
    print(header, "language right", sep=" | ")
    f1: dict[str, float] = {}
    every = EntityCounter()
    for path in sorted(data.glob("*.test.conllu.gz")):
        texts = read_labelled(path).texts[:limit]
        language = path.name[:2]
        counter, theirs, lost = measure(tagger, texts)
        named = sum(one.language == language for one in tagger.potentials([t.text for t in texts[:1000]]))
        slices = texts[:1000]
        cases = [measure(tagger, recase(slices, change))[0].total.f1 for change in (str.upper, str.lower, str.title)]
        rate, share = false_entities(tagger, clauses(texts)[:5000])
        total = counter.total
        f1[language] = total.f1
        every.merge(counter)
        print(
            f"{language}   {len(texts):6} {total.precision:.3f} {total.recall:.3f} {total.f1:.4f} {theirs:.4f} "
            f"{counter.exact / counter.texts:.3f} {lost:4} | {cases[0]:.3f} {cases[1]:.3f} {cases[2]:.3f} | "
            f"{rate:6.2f} {share:.4f} | {named / min(1000, len(texts)):.3f}",
            flush=True,
        )
    print(f"all  {every.texts:6} texts: F1 {every.total.f1:.4f}, whole texts right {every.exact / every.texts:.3f}")
    for name, counts in every.by_class.items():
        print(f"  {name:5} precision {counts.precision:.4f} recall {counts.recall:.4f} F1 {counts.f1:.4f}")
    ratios = " ".join(f"{lang} {100 * value / PROTOTYPE[lang]:.3f}" for lang, value in f1.items() if lang in PROTOTYPE)
    print(f"F1 as a ratio of the prototype's (1 point is about 0.011): {ratios}")


def default_data() -> Path | None:
    """Return the directory that the tests' data lie in, if one is named."""
    named = os.environ.get("SURESPAN_TEST_DATA")
    return Path(named) / "wikineural" if named else None


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--data", type=Path, default=default_data())
    parser.add_argument("--files", type=Path, nargs="*", default=[])
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    begun = time.perf_counter()
    tagger = load_tagger(options.model)
    print(f"model {tagger.name}@{tagger.hash[:8]}, loaded in {time.perf_counter() - begun:.2f} s")
    limit = None if options.full else 1000
    if options.files:
        report_files(tagger, options.files, limit)
    elif options.data is not None:
        report_nine(tagger, options.data, limit)
    else:
        print("skipped: no data given; name their directory with --data, or labelled files with --files")


if __name__ == "__main__":
    main()
