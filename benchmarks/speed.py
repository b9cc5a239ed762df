"""Processor time of predictions: the compiled network beside torch's, spaCy and python-crfsuite; sets; starting.

    python benchmarks/speed.py [--texts 1000] [--data DIRECTORY] [--runs 3]

Everything is processor time of one thread, the least of several runs that alternate, so that work beside it moves all
of them alike. Texts are sentences of WikiNEuRal English where the data is there, else made up from word lists. The
peers learn 1,500 of its validation sentences here and now: enough for their speed, not for how good they can be.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from _claims import claim
from tagger import make_texts

from backend.calibration.local_predictor import local_predictor
from backend.prediction.predictor import Predictor
from backend.settings import load_settings
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import BUNDLED, model_directory
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagger
from backend.tagger.tokens import token_texts, tokenize
from conformal.labels import LabelSpace

ROOT = Path(__file__).parents[1]
LEARNED = 1_500
Run = Callable[[], object]


def least(runs: dict[str, Run], times: int) -> dict[str, float]:
    """Return the least processor seconds of each, taken in turns."""
    best = dict.fromkeys(runs, np.inf)
    for _ in range(times):
        for name, run in runs.items():
            begun = time.process_time()
            run()
            best[name] = min(best[name], time.process_time() - begun)
    return best


def batches(texts: Sequence[str], size: int) -> list[list[str]]:
    """Cut texts into batches."""
    return [list(texts[i : i + size]) for i in range(0, len(texts), size)]


def torch_tagger() -> Tagger:
    """Load the same weights as torch runs them: the tests' reference."""
    spec = importlib.util.spec_from_file_location("torch_tagger", ROOT / "tests" / "support" / "torch_tagger.py")
    if spec is None or spec.loader is None:
        raise RuntimeError("expected tests/support/torch_tagger.py beside the benchmarks; run from a clone")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Tagger = module.TorchTagger(model_directory(BUNDLED))
    return made


def compare_networks(texts: Sequence[str], times: int) -> None:
    """Tokens a second of the compiled network and of torch's, from text to scores."""
    ours, theirs = load_tagger(BUNDLED), torch_tagger()
    tokens = sum(len(one.tokens) for one in ours.potentials(texts))
    theirs.potentials(texts[:32])
    for size, target in ((1, 5.0), (32, 3.0), (256, None)):
        part = batches(texts, size)

        def run(tagger: Tagger, part: list[list[str]] = part) -> Run:
            return lambda: [tagger.potentials(each) for each in part]

        best = least({"compiled": run(ours), "torch": run(theirs)}, times)
        ratio = best["torch"] / best["compiled"]
        print(
            f"batch {size:3}: compiled {tokens / best['compiled']:8,.0f} tokens/s, "
            f"torch {tokens / best['torch']:8,.0f}, ratio {ratio:.2f}",
            flush=True,
        )
        if target is not None:
            claim(f"tagging, tokens a second in batches of {size}", peer="torch", ratio=ratio, at_least=target)


class _ProcessorWatch:
    """A stopwatch of processor time."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begun: list[tuple[str, float]] = []

    def measure(self, stage: str) -> _ProcessorWatch:
        self._begun.append((stage, time.process_time()))
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        stage, begun = self._begun.pop()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - begun


def measure_stages(predictor: Predictor, texts: Sequence[str], times: int) -> None:
    """Milliseconds a sentence of tagging, decoding and sets, in batches of 32."""
    best: dict[str, float] = {}
    for _ in range(times):
        watch = _ProcessorWatch()
        for part in batches(texts, 32):
            predictor.predict(part, watch=watch)  # type: ignore[arg-type] - measures in the same way
        best = {stage: min(best.get(stage, np.inf), seconds) for stage, seconds in watch.seconds.items()}
    each = {stage: 1_000 * seconds / len(texts) for stage, seconds in best.items()}
    print("ms a sentence in batches of 32: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in each.items()), flush=True)
    claim("sets, ms a sentence", peer="0.4 ms", ratio=each["sets"] / 0.4, at_most=1.0)


def measure_start() -> None:
    """Processor seconds of a whole `surespan predict` of one sentence, compiled code being on disk."""
    command = [sys.executable, "-c", "from backend.cli import main; main()", "predict", "Anna Berg lives in Rome."]
    spent = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(3):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    print(f"surespan predict of one sentence: {min(spent[1:]):.2f} s of processor, the first time {spent[0]:.2f}")
    claim("surespan predict, processor seconds", peer="1.5 s", ratio=min(spent[1:]) / 1.5, at_most=1.0)


def crfsuite(train: Sequence[LabelledText], space: LabelSpace) -> Callable[[list[list[str]]], object]:
    """Train python-crfsuite on words, shapes and affixes; return what tags texts."""
    import pycrfsuite
    from learning import attributes

    trainer = pycrfsuite.Trainer(verbose=False)
    for text in train:
        tokens = tokenize(text.text)
        aligned = to_token_spans(text.spans, tokens, text=text.text)
        if tokens and not aligned.inexpressible:
            rows = attributes(token_texts(text.text, tokens))
            trainer.append(rows, space.decode(space.ids(aligned.spans, len(tokens))))
    trainer.set_params({"c1": 0.1, "c2": 0.1, "max_iterations": 30})
    folder = tempfile.mkdtemp(prefix="ssb")
    trainer.train(f"{folder}/model")
    tagger = pycrfsuite.Tagger()
    tagger.open(f"{folder}/model")
    return lambda parts: [tagger.tag(attributes(token_texts(text, tokenize(text)))) for part in parts for text in part]


def spacy(train: Sequence[LabelledText], space: LabelSpace) -> Callable[[list[list[str]]], object]:
    """Train spaCy's network from a blank model for a moment; return what tags texts."""
    import spacy as peer
    from spacy.training import Example

    nlp = peer.blank("en")
    recogniser = nlp.add_pipe("ner")
    for label in space.classes:
        recogniser.add_label(label)
    examples = []
    for text in train[:200]:
        doc = nlp.make_doc(text.text)
        spans = [doc.char_span(span.start, span.end, span.label) for span in text.spans]
        doc.ents = [span for span in spans if span is not None]
        examples.append(Example(nlp.make_doc(text.text), doc))
    optimizer = nlp.initialize(lambda: examples)
    for batch in peer.util.minibatch(examples, 16):
        nlp.update(batch, sgd=optimizer)
    return lambda parts: [list(nlp.pipe(part, batch_size=len(part))) for part in parts]


def compare_peers(texts: Sequence[str], train: Sequence[LabelledText], times: int) -> None:
    """Tokens a second beside taggers that give one labeling, without probabilities or sets."""
    space = LabelSpace(sorted({span.label for text in train for span in text.spans}))
    ours = load_tagger(BUNDLED)
    tokens = sum(len(one.tokens) for one in ours.potentials(texts))
    taggers: dict[str, Callable[[list[list[str]]], object]] = {
        "ours": lambda parts: [ours.potentials(part) for part in parts]
    }
    for name, make in (("spacy", spacy), ("python-crfsuite", crfsuite)):
        try:
            taggers[name] = make(train, space)
        except ImportError as error:
            print(f"skipped {name}: {error}")
    for size in (1, 64):
        part = batches(texts, size)

        def run(tag: Callable[[list[list[str]]], object], part: list[list[str]] = part) -> Run:
            return lambda: tag(part)

        best = least({name: run(tag) for name, tag in taggers.items()}, times)
        print(f"batch {size:3}: " + ", ".join(f"{name} {tokens / s:,.0f} tokens/s" for name, s in best.items()))
        for name in best:
            if name != "ours":
                what = f"tagging nine languages, tokens a second in batches of {size}"
                claim(what, peer=name, ratio=best[name] / best["ours"], at_least=1.0)


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("SURESPAN_TEST_DATA"))
    parser.add_argument("--texts", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    if not options.data or not (Path(options.data) / "wikineural").is_dir():
        print("made-up texts, and no peers: name a directory that holds wikineural with --data")
        train = []
        texts = make_texts(options.texts, np.random.default_rng(1))
    else:
        folder = Path(options.data) / "wikineural"
        train = list(read_labelled(folder / "en.val.conllu.gz").texts[:LEARNED])
        texts = [text.text for text in read_labelled(folder / "en.test.conllu.gz").texts[: options.texts]]
    measure_start()
    compare_networks(texts, options.runs)
    predictor = local_predictor(load_settings())
    measure_stages(predictor, texts, options.runs)
    if train:
        compare_peers(texts, train, options.runs)


if __name__ == "__main__":
    main()
