"""How good a model of a project's own is after n labels, and what it costs: learning curves beside named peers.

    python benchmarks/learning.py [--data DIR] [--sets bc5cdr,music] [--sizes 20,50] [--orders 2] [--learners linear]

Reads BC5CDR, CrossNER and CoNLL++ in DIR (or in $SURESPAN_TEST_DATA); skipped without. Learners: `linear` (ours, with
the bundled network's knowledge), `plain` (ours without it), `crfsuite` (python-crfsuite on the same tokens; skipped if
it is not installed), `network` (today's network, begun with the bundled weights), `bundled` (as it is, CoNLL++ only),
`spacy` (its convolutional network from a blank model, on the same tokens; it has no probabilities, so F1 alone).
Every learner gets the first n training sentences of a random order and nothing else; test sentences are drawn once.

Entity F1 of the best labeling; log-loss of a sentence in nats; mean size of the sets that cover 0.80 and 0.95:
half of the test sentences set the threshold on P(y|x), the other half is looked at, sizes are cut off at 200.
Sentences whose label no labeling says count as missed in F1, and are left out of log-loss and sizes. Processor seconds
are of learning alone, without compiling the kernels.
The last lines give each learner's mean over the orders, and its ratio to python-crfsuite.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console

import conformal
from backend.domain.records import TextSpan
from backend.tagger.entity_f1 import EntityCounter
from backend.tagger.features import shape
from backend.tagger.linear.learning import learn
from backend.tagger.linear.saved import load_base
from backend.tagger.linear.tagger import LinearTagger
from backend.tagger.loading import load_tagger
from backend.tagger.model import load_model
from backend.tagger.model_files import BUNDLED, model_directory
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagger
from backend.tagger.tokens import Token, token_texts, tokenize
from backend.tagger.training import TrainingConfig
from backend.tagger.training_data import Material
from backend.tagger.training_run import train_words
from conformal.labels import LabelSpace
from conformal.trellis.forward import log_probability
from conformal.trellis.potentials import Chain, Potentials

FILES = {
    "bc5cdr": (["bc5cdr/train.tsv.gz"], "bc5cdr/test.tsv.gz"),
    "conllpp": (["conllpp/train.txt.gz"], "conllpp/test.txt.gz"),
    "music": (["crossner/music.train.tsv.gz", "crossner/music.dev.tsv.gz"], "crossner/music.test.tsv.gz"),
    "science": (["crossner/science.train.tsv.gz", "crossner/science.dev.tsv.gz"], "crossner/science.test.tsv.gz"),
}
TESTED = 1_000
LONGEST_SET = 200
LEVELS = (0.80, 0.95)


@dataclass(frozen=True)
class Task:
    """What a learner is given: texts to learn from, their label space, and texts to say something about."""

    train: list[LabelledText]
    space: LabelSpace
    test: list[LabelledText]


@dataclass(frozen=True)
class Figures:
    """What is printed of one learner, one size and one order."""

    f1: float
    loss: float
    size_80: float
    size_95: float
    seconds: float


class Answers(NamedTuple):
    """What a learner says of the tested texts. `space` is its own: from few texts it may not know all classes."""

    tokens: list[tuple[Token, ...]]
    chains: list[Potentials]
    seconds: float
    space: LabelSpace


Learner = Callable[[Task], Answers | Figures]  # figures at once where there are no chains


def _tagged(tagger: Tagger, task: Task, seconds: float) -> Answers:
    tagged = tagger.potentials([text.text for text in task.test])
    return Answers([one.tokens for one in tagged], [one.potentials for one in tagged], seconds, tagger.space)


def linear(task: Task) -> Answers:
    """Ours, with the bundled network's knowledge."""
    base = load_base(BUNDLED).tagger
    begun = time.process_time()
    learnt = learn(task.train, space=task.space, base=base, languages=["en"])
    return _tagged(LinearTagger.of(learnt, base=base, languages=["en"]), task, time.process_time() - begun)


def plain(task: Task) -> Answers:
    """Ours from nothing."""
    begun = time.process_time()
    learnt = learn(task.train, space=task.space, languages=["en"])
    return _tagged(LinearTagger.of(learnt, languages=["en"]), task, time.process_time() - begun)


def bundled(task: Task) -> Answers:
    """The bundled network as it is; its classes are those of CoNLL++ alone."""
    return _tagged(load_tagger(BUNDLED), task, 0.0)


def network(task: Task) -> Answers:
    """The network, begun with the bundled weights; a tenth of the texts says when to stop."""
    material = Material()
    material.hold_out(task.train, share=0.1, rng=np.random.default_rng(7))
    start = load_model(model_directory(BUNDLED))
    begun = time.process_time()
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        train_words(material, Path(folder), config=TrainingConfig(), start=start, console=Console(file=nowhere))
        seconds = time.process_time() - begun
        return _tagged(load_tagger(folder), task, seconds)


def attributes(words: Sequence[str]) -> list[list[str]]:
    """Word, shape and affixes of a token, and of two neighbours on either side."""
    rows = []
    for i, word in enumerate(words):
        row = [
            "bias",
            f"w={word}",
            f"l={word.lower()}",
            f"s={shape(word)}",
            f"u={word.isupper()}",
            f"t={word.istitle()}",
        ]
        row += [f"d={word.isdigit()}"]
        for k in range(1, 5):
            row += [f"p{k}={word[:k].lower()}", f"x{k}={word[-k:].lower()}"]
        for offset in (-2, -1, 1, 2):
            j = i + offset
            if 0 <= j < len(words):
                row += [
                    f"{offset}:l={words[j].lower()}",
                    f"{offset}:s={shape(words[j])}",
                    f"{offset}:x={words[j][-3:]}",
                ]
            else:
                row.append(f"{offset}:edge")
        rows.append(row)
    return rows


def crfsuite(task: Task) -> Answers:
    """python-crfsuite with c1 = c2 = 0.1, 100 iterations; its weights are run by our chain, illegal moves forbidden."""
    import pycrfsuite

    space, L = task.space, len(task.space)
    begun = time.process_time()
    trainer = pycrfsuite.Trainer(verbose=False)
    for text in task.train:
        tokens = tokenize(text.text)
        aligned = to_token_spans(text.spans, tokens, text=text.text)
        if tokens and not aligned.inexpressible:
            rows = attributes(token_texts(text.text, tokens))
            trainer.append(rows, space.decode(space.ids(aligned.spans, len(tokens))))
    trainer.set_params({"c1": 0.1, "c2": 0.1, "max_iterations": 100, "feature.possible_transitions": True})
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(f"{folder}/model")
        seconds = time.process_time() - begun
        tagger = pycrfsuite.Tagger()
        tagger.open(f"{folder}/model")
        info = tagger.info()
        tagger.close()
    weights: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(L))
    for (attribute, label), weight in info.state_features.items():
        weights[attribute][space.index(label)] = weight
    transitions = np.zeros((L, L))
    for (before, after), weight in info.transitions.items():
        transitions[space.index(before), space.index(after)] = weight
    chain = Chain(
        transitions=np.where(space.allowed, transitions, -np.inf),
        start=np.where(space.allowed_start, 0.0, -np.inf),
        end=np.zeros(L),
    )
    known = dict(weights)
    every = [tuple(tokenize(text.text)) for text in task.test]
    chains = []
    for text, own in zip(task.test, every, strict=True):
        emissions = np.zeros((len(own), L))
        for j, row in enumerate(attributes(token_texts(text.text, list(own)))):
            for attribute in row:
                if attribute in known:
                    emissions[j] += known[attribute]
        chains.append(chain.potentials(emissions))
    return Answers(every, chains, seconds, space)


def spacy(task: Task) -> Figures:
    """spaCy's network from a blank model; a tenth of the texts says when to stop: after 600 updates without gain."""
    import spacy as peer
    from spacy.tokens import Doc
    from spacy.training import Example, iob_to_biluo

    nlp = peer.blank("en")

    def document(text: str) -> Doc:
        tokens = tokenize(text)
        words = token_texts(text, tokens)
        after = [token.start for token in tokens[1:]] + [len(text)]
        return Doc(nlp.vocab, words=words, spaces=[end > token.end for token, end in zip(tokens, after, strict=True)])

    def example(text: LabelledText) -> Example:
        tokens, doc = tokenize(text.text), document(text.text)
        aligned = to_token_spans(text.spans, tokens, text=text.text)
        tags = ["O"] * len(tokens)
        for start, end, label in aligned.spans:
            tags[start:end] = [f"B-{label}", *[f"I-{label}"] * (end - start - 1)]
        return Example.from_dict(doc, {"entities": iob_to_biluo(tags)})

    def f1(texts: Sequence[LabelledText]) -> float:
        counter = EntityCounter()
        for text, doc in zip(texts, nlp.pipe([document(text.text) for text in texts], batch_size=64), strict=True):
            aligned = to_token_spans(text.spans, tokenize(text.text), text=text.text)
            missed = [("?", k, item.span.label) for k, item in enumerate(aligned.inexpressible)]
            counter.add([*aligned.spans, *missed], [(ent.start, ent.end, ent.label_) for ent in doc.ents])
        return counter.total.f1

    recogniser = nlp.add_pipe("ner")
    for label in task.space.classes:
        recogniser.add_label(label)
    rng = np.random.default_rng(7)
    order = rng.permutation(len(task.train))
    held = [task.train[i] for i in order[: max(1, len(order) // 10)]]
    examples = [example(task.train[i]) for i in order[max(1, len(order) // 10) :]]
    begun = time.process_time()
    peer.util.fix_random_seed(7)
    optimizer = nlp.initialize(lambda: examples)
    best, kept, updates, last = -1.0, nlp.to_bytes(), 0, 0
    while updates < 4_000 and updates - last < 600:
        for batch in peer.util.minibatch([examples[i] for i in rng.permutation(len(examples))], 8):
            nlp.update(batch, sgd=optimizer, drop=0.1)
            updates += 1
        score = f1(held)
        if score > best:
            best, kept, last = score, nlp.to_bytes(), updates
    nlp.from_bytes(kept)
    seconds = time.process_time() - begun
    return Figures(f1(task.test), np.nan, np.nan, np.nan, seconds)


LEARNERS: dict[str, Learner] = {
    "linear": linear,
    "plain": plain,
    "crfsuite": crfsuite,
    "network": network,
    "bundled": bundled,
    "spacy": spacy,
}


def measure(task: Task, answers: Answers | Figures, *, split: np.random.Generator) -> Figures:
    """Return F1, log-loss and set sizes."""
    if isinstance(answers, Figures):
        return answers
    every, chains, seconds, space = answers
    counter = EntityCounter()
    scores = np.full(len(chains), np.nan)
    best = conformal.kbest(chains, LONGEST_SET, threads=1)
    for i, (text, own, chain, found) in enumerate(zip(task.test, every, chains, best, strict=True)):
        aligned = to_token_spans(text.spans, own, text=text.text, boundaries=chain.boundaries)
        missed = [("?", k, item.span.label) for k, item in enumerate(aligned.inexpressible)]
        counter.add([*aligned.spans, *missed], space.spans(found.labels[0]))
        if missed:
            continue
        known = all(span.label in space.classes for span in aligned.spans)
        scores[i] = -log_probability(chain, space.ids(aligned.spans, len(own))) if known else np.inf
    usable = split.permutation(np.flatnonzero(~np.isnan(scores)))
    half = len(usable) // 2
    calibration, tested = usable[:half], usable[half:]
    sizes = []
    for level in LEVELS:
        rank = int(np.ceil(level * (half + 1)))
        threshold = np.sort(scores[calibration])[rank - 1] if rank <= half else np.inf
        sizes.append(np.mean([max(1, int((best[i].log_probabilities >= -threshold).sum())) for i in tested]))
    return Figures(counter.total.f1, float(np.nanmean(scores)), float(sizes[0]), float(sizes[1]), seconds)


def read_set(data: Path, name: str) -> tuple[list[LabelledText], list[LabelledText]]:
    """Return the training sentences of a set and those it is tested on."""
    train, test = FILES[name]
    texts = [text for file in train for text in read_labelled(data / file).texts if text.text.strip()]
    tests = [text for text in read_labelled(data / test).texts if text.text.strip()]
    drawn = np.random.default_rng(0).permutation(len(tests))[:TESTED]
    return texts, [tests[i] for i in drawn]


def warm_up() -> None:
    """Compile the kernels, which the first run on a machine does once and whose time is not of any learner."""
    text = "Anna met Bob in Rome."
    learn([LabelledText(text, (TextSpan(0, 4, "x"),))] * 6)
    load_base(BUNDLED).tagger.potentials([text])


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("SURESPAN_TEST_DATA"))
    parser.add_argument("--sets", default="bc5cdr,music,science,conllpp")
    parser.add_argument("--sizes", default="20,50,100,200,500,1000,2000")
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--learners", default="linear,plain,crfsuite")
    options = parser.parse_args()
    if options.data is None or not Path(options.data).is_dir():
        print("skipped: no data given; name their directory with --data")
        return
    torch.set_num_threads(1)
    warm_up()
    table: dict[tuple[str, int, str], list[Figures]] = defaultdict(list)
    for name in options.sets.split(","):
        train, test = read_set(Path(options.data), name)
        space = LabelSpace(sorted({span.label for text in train for span in text.spans}))
        for n in (int(size) for size in options.sizes.split(",")):
            if n > len(train):
                continue
            for order in range(options.orders):
                chosen = np.random.default_rng(100 + order).permutation(len(train))[:n]
                task = Task([train[i] for i in chosen], space, test)
                for learner in options.learners.split(","):
                    try:
                        found = measure(task, LEARNERS[learner](task), split=np.random.default_rng(5))
                    except ImportError as error:
                        print(f"skipped {learner}: {error}")
                        continue
                    table[name, n, learner].append(found)
                    print(
                        f"{name:8} n {n:5} order {order} {learner:9} F1 {found.f1:.3f} log-loss {found.loss:6.2f} "
                        f"sets {found.size_80:6.1f} {found.size_95:6.1f} {found.seconds:6.1f} s",
                        flush=True,
                    )
    print("\n| set | n | learner | F1 | log-loss | set at 0.80 | at 0.95 | processor s | F1 / python-crfsuite's |")
    print("|---|---|---|---|---|---|---|---|---|")
    for (name, n, learner), rows in table.items():
        f1, loss, small, large, seconds = np.mean([list(vars(row).values()) for row in rows], axis=0)
        peer = table.get((name, n, "crfsuite"))
        ratio = f"{f1 / np.mean([row.f1 for row in peer]):.2f}" if peer else ""
        figures = f"{f1:.3f} | {loss:.2f} | {small:.1f} | {large:.1f} | {seconds:.1f}"
        print(f"| {name} | {n:,} | {learner} | {figures} | {ratio} |")


if __name__ == "__main__":
    main()
