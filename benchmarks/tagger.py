"""Texts per second of the bundled tagger by batch size and threads, and its memory over 100,000 texts.

    python benchmarks/tagger.py [--texts 2000] [--memory-texts 100000] [--model bundled]

Texts are made up from word lists, so that nothing but the model is needed. Speeds are given as ratios to batches of
one text on one thread of the same run. The memory part tags short texts in batches of 256 and prints the resident
memory after 10,000 and after all of them; the script fails when it has grown by more than a tenth.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import psutil
import torch
from _claims import claim

from backend.tagger.loading import load_tagger
from backend.tagger.network_tagger import NetworkTagger

NAMES = [
    "Anna Berg",
    "Luc Morel",
    "Giulia Conti",
    "Иван Волков",
    "Northgate Ltd",
    "Editorial Faro",
    "Gdańsk",
    "São Roque",
]
WORDS = [
    "the", "a", "of", "and", "in", "with", "year", "town", "river", "met", "moved", "opened", "published", "der",
    "die", "das", "und", "in", "mit", "Jahr", "Stadt", "traf", "zog", "la", "el", "los", "en", "con", "año",
    "ciudad", "río", "le", "les", "avec", "ville", "il", "con", "città", "nel", "anno", "de", "het", "een", "stad",
    "jaar", "w", "z", "rok", "miasto", "o", "a", "cidade", "ano", "com", "город", "год", "река", "открыл",
    "написал", "жил",
]  # fmt: skip


def make_texts(count: int, rng: np.random.Generator, *, longest: int = 40) -> list[str]:
    """Sentences of up to `longest` words with a name every seven words or so and some words never seen before."""
    texts = []
    for length in rng.integers(longest // 5, longest + 1, count).tolist():
        words = []
        for kind in rng.random(length).tolist():
            if kind < 0.14:
                words.append(NAMES[int(rng.integers(len(NAMES)))])
            elif kind < 0.3:
                words.append("".join(chr(97 + int(k)) for k in rng.integers(0, 26, 7)))
            else:
                words.append(WORDS[int(rng.integers(len(WORDS)))])
        texts.append(" ".join(words).capitalize() + ".")
    return texts


def speed(tagger: NetworkTagger, texts: list[str], batch: int) -> float:
    """Texts per second in batches of `batch`."""
    begun = time.perf_counter()
    for i in range(0, len(texts), batch):
        tagger.potentials(texts[i : i + batch])
    return len(texts) / (time.perf_counter() - begun)


def print_speeds(tagger: NetworkTagger, count: int) -> None:
    """One line a batch size, one column a number of threads."""
    texts = make_texts(count, np.random.default_rng(1))
    tokens = sum(len(one.tokens) for one in tagger.potentials(texts))
    print(f"{count} texts of {tokens / count:.1f} tokens on average; ratio to batches of one on one thread")
    base = 0.0
    for batch in (1, 8, 32, 128, 512):
        line = f"batch {batch:4}:"
        for threads in (1, 2):
            torch.set_num_threads(threads)
            part = texts if batch > 1 else texts[: max(200, count // 4)]
            rate = speed(tagger, part, batch)
            base = base or rate
            line += f"  {threads} thread{'s' if threads > 1 else ' '} {rate:7.0f} texts/s  x {rate / base:5.2f}"
        print(line, flush=True)


def print_memory(tagger: NetworkTagger, count: int) -> None:
    """Resident memory while tagging, and once for one text of 100,000 characters."""
    torch.set_num_threads(1)
    process = psutil.Process()
    rng = np.random.default_rng(2)
    marks: dict[int, float] = {}
    done = 0
    first = min(10_000, count // 10)
    while done < count:
        tagger.potentials(make_texts(256, rng, longest=12))
        done += 256
        for mark in (first, count // 2, count):
            if done >= mark and mark not in marks:
                marks[mark] = process.memory_info().rss / 2**20
    print("resident memory: " + ", ".join(f"{mark:,} texts {size:.0f} MB" for mark, size in sorted(marks.items())))
    growth = marks[count] / marks[first]
    print(f"memory after {count:,} texts / after {first:,} texts: x {growth:.3f}")
    before = process.memory_info().rss / 2**20
    for text in ("word " * 20_000, "日本。" * 33_333, "Anna Berg lives here. " * 4_545):
        tagger.potentials([text])
    after = process.memory_info().rss / 2**20
    print(f"after three texts of 100,000 characters: {after:.0f} MB (x {after / before:.3f})")
    what = f"the tagger's memory after {count:,} texts"
    if not claim(what, peer="after a tenth of them", ratio=growth, at_most=1.1):
        raise SystemExit("memory grew by more than a tenth while tagging")


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="bundled")
    parser.add_argument("--texts", type=int, default=2_000)
    parser.add_argument("--memory-texts", type=int, default=100_000)
    options = parser.parse_args()
    begun = time.perf_counter()
    tagger = load_tagger(options.model)
    print(f"model {tagger.name}@{tagger.hash[:8]} loaded in {time.perf_counter() - begun:.2f} s")
    tagger.potentials(["Warm up the kernels."])
    print_speeds(tagger, options.texts)
    print_memory(tagger, options.memory_texts)


if __name__ == "__main__":
    main()
