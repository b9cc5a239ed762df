"""Emissions of every architecture family and label scheme against a plain forward pass of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from backend.tagger.errors import InvalidModel
from backend.tagger.hf.batches import Batch
from backend.tagger.hf.chain import structural
from backend.tagger.hf.classifier import emissions_of
from backend.tagger.hf.loading import load_checkpoint_tagger
from backend.tagger.hf.mapping import LabelMapping, map_labels
from backend.tagger.hf.tagger import WindowTagger
from backend.tagger.loading import load_tagger
from backend.tagger.options import TaggerOptions
from backend.tagger.tagger import Tagged
from backend.tagger.tokens import tokenize
from conformal.labels import LabelSpace, Span
from conformal.trellis.kbest import kbest
from tests.support import checkpoints
from tests.support.checkpoints import BIOES, FAMILIES, IO, IOB2, ONTONOTES, TEXTS

Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints, each made once."""
    root = tmp_path_factory.mktemp("checkpoints")
    known: dict[tuple[Any, ...], Path] = {}

    def make(family: str, labels: Sequence[str] = IOB2, *, lower: bool = False) -> Path:
        key = (family, tuple(labels), lower)
        if key not in known:
            folder = root / f"{family}-{len(known)}"
            if family == "slow":
                known[key] = checkpoints.make_slow_checkpoint(folder, labels=labels)
            else:
                known[key] = checkpoints.make_checkpoint(folder, family, labels=labels, lower=lower)
        return known[key]

    return make


def plain_pass(folder: Path, text: str) -> tuple[Floats, list[tuple[int, int]]]:
    """Log-probabilities of the checkpoint's own columns at every piece, and the pieces' places; nothing of ours."""
    tokenizer, model = checkpoints.plain(folder)
    found = tokenizer(text, return_tensors="pt", return_offsets_mapping=True)
    places = [tuple(place) for place in found.pop("offset_mapping")[0].tolist()]
    with torch.no_grad():
        logits = model(**found).logits[0].double()
    return logits.log_softmax(dim=1).numpy(), places


def first_piece(places: list[tuple[int, int]], start: int, end: int) -> int:
    return next(i for i, (a, b) in enumerate(places) if a < b and a < end and start < b)


def probabilities(tagged: Tagged) -> Floats:
    return np.exp(tagged.potentials.emissions)


@pytest.mark.parametrize(("family", "lower"), [*((family, False) for family in FAMILIES), ("bert", True)])
def test_emissions_are_those_of_a_plain_pass_at_the_first_pieces(made: Any, family: str, lower: bool) -> None:
    folder = made(family, lower=lower)
    tagger = load_tagger(folder)
    assert tagger.space == LabelSpace(["PER", "LOC", "ORG", "MISC"])
    compared = 0
    for tagged in tagger.potentials(TEXTS):
        own, places = plain_pass(folder, tagged.text)
        seen = -1
        for token, emission in zip(tagged.tokens, tagged.potentials.emissions, strict=True):
            piece = first_piece(places, *token)
            if piece != seen:  # a word that shares the piece of the word before continues it; see below
                np.testing.assert_allclose(emission, own[piece], atol=1e-5)
                compared += 1
            seen = piece
    assert compared > 40


def test_a_slow_tokenizer_gets_its_words_one_by_one(made: Any) -> None:
    folder = made("slow")
    tokenizer, model = checkpoints.plain(folder)
    assert not tokenizer.is_fast
    for tagged in load_tagger(folder).potentials(TEXTS):
        words = [tagged.text[start:end] for start, end in tagged.tokens]
        pieces = [tokenizer.tokenize(word) for word in words]
        whole = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        assert whole["input_ids"].shape[1] == sum(map(len, pieces)) + 2
        with torch.no_grad():
            own = model(**whole).logits[0].double().log_softmax(dim=1).numpy()
        firsts = 1 + np.concatenate([[0], np.cumsum([len(one) for one in pieces])[:-1]])
        np.testing.assert_allclose(tagged.potentials.emissions, own[firsts], atol=1e-5)


def test_the_second_word_has_a_leading_blank_in_byte_level_pieces(made: Any) -> None:
    folder = made("roberta")
    tokenizer, _ = checkpoints.plain(folder)
    text = "in in"
    [pieces] = load_checkpoint_tagger(str(folder)).model.subworder.split([text], [tokenize(text)])
    assert pieces.ids.tolist() == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.convert_ids_to_tokens(int(pieces.ids[pieces.firsts[1]])).startswith("Ġ")


@pytest.mark.parametrize("labels", [IOB2, IO, BIOES, ONTONOTES], ids=["IOB2", "IO", "BIOES", "OntoNotes"])
def test_each_scheme_adds_its_columns_up(made: Any, labels: list[str]) -> None:
    folder = made("bert", labels)
    tagger = load_tagger(folder)
    for tagged in tagger.potentials(TEXTS[:3]):
        own, places = plain_pass(folder, tagged.text)
        for token, found in zip(tagged.tokens, probabilities(tagged), strict=True):
            p = dict(zip(labels, np.exp(own[first_piece(places, *token)]), strict=True))
            for label, value in zip(tagger.space.labels, found, strict=True):
                if label == "O":
                    wanted = p["O"]
                elif labels is IO:
                    wanted = p[label[2:]]
                elif labels is BIOES:
                    wanted = p[label] + p[("S-" if label[0] == "B" else "E-") + label[2:]]
                else:
                    wanted = p[label]
                assert value == pytest.approx(wanted, abs=1e-6)


def test_a_mapping_file_turns_eighteen_classes_into_a_projects_own(made: Any, tmp_path: Path) -> None:
    folder = made("bert", ONTONOTES)
    mapping = tmp_path / "map.json"
    others = {
        name: None for name in checkpoints.ONTONOTES_CLASSES if name not in {"PERSON", "GPE", "LOC", "FAC", "ORG"}
    }
    mapping.write_text(json.dumps({"classes": {"PERSON": "PER", "GPE": "LOC", "FAC": "LOC", **others}}))
    plain, mapped = load_tagger(folder), load_tagger(folder, options=TaggerOptions(mapping=mapping))
    assert mapped.space.classes == ("LOC", "ORG", "PER")
    assert plain.hash != mapped.hash
    for before, after in zip(plain.potentials(TEXTS), mapped.potentials(TEXTS), strict=True):
        p, q = probabilities(before), probabilities(after)
        column = {label: i for i, label in enumerate(plain.space.labels)}
        for prefix in "BI":
            three = sum(p[:, column[f"{prefix}-{name}"]] for name in ("GPE", "LOC", "FAC"))
            np.testing.assert_allclose(q[:, mapped.space.index(f"{prefix}-LOC")], three, atol=1e-9)
        outside = [column["O"], *(column[f"{prefix}-{name}"] for name in others for prefix in "BI")]
        np.testing.assert_allclose(q[:, 0], p[:, outside].sum(axis=1), atol=1e-9)
        np.testing.assert_allclose(q.sum(axis=1), 1.0, atol=1e-9)


def spans_of(names: Sequence[str], columns: Sequence[int], *, firsts: Sequence[int] | None = None) -> list[Span]:
    """Decode one text whose words have these columns of a checkpoint as by far the likeliest."""
    labels = map_labels(names)
    logits = torch.zeros(1, len(columns), len(names), dtype=torch.float64)
    logits[0, range(len(columns)), list(columns)] = 12.0
    places = torch.tensor([list(range(1, len(columns) + 1)) if firsts is None else list(firsts)])
    emissions = emissions_of(logits, places, labels)[0].numpy()
    best = kbest(structural(labels).chain.potentials(emissions), 1)
    return labels.space.spans(best.labels[0])


def test_io_labels_join_neighbours_of_one_class_and_split_those_of_two() -> None:
    names = ["O", "PER", "LOC"]
    assert spans_of(names, [1, 1, 2, 2, 0, 2]) == [Span(0, 2, "PER"), Span(2, 4, "LOC"), Span(5, 6, "LOC")]
    assert spans_of(["O", "I-PER", "I-LOC"], [1, 1, 2]) == [Span(0, 2, "PER"), Span(2, 3, "LOC")]


def test_other_schemes_split_neighbours_where_their_labels_do() -> None:
    assert spans_of(["O", "B-PER", "I-PER"], [1, 1, 2]) == [Span(0, 1, "PER"), Span(1, 3, "PER")]
    bioes = ["O", "B-PER", "I-PER", "E-PER", "S-PER"]
    assert spans_of(bioes, [4, 1, 3, 4]) == [Span(0, 1, "PER"), Span(1, 3, "PER"), Span(3, 4, "PER")]


def test_words_that_share_a_piece_continue_one_entity() -> None:
    assert spans_of(["O", "B-PER", "I-PER"], [1, 1], firsts=[1, 1]) == [Span(0, 2, "PER")]
    assert spans_of(["O", "B-PER", "I-PER"], [1, 1], firsts=[1, 2]) == [Span(0, 1, "PER"), Span(1, 2, "PER")]


def test_a_word_that_the_tokenizer_drops_says_nothing(made: Any) -> None:
    tagger = load_tagger(made("bert"))
    [tagged] = tagger.potentials(["Anna \u0301 Berg"])  # an accent on a blank: visible, and cleaned away by BERT
    lone = [i for i, (start, end) in enumerate(tagged.tokens) if tagged.text[start:end].strip() == "\u0301"]
    firsts = load_checkpoint_tagger(str(made("bert"))).model.subworder.split([tagged.text], [tagged.tokens])[0].firsts
    for i in lone:
        if firsts[i] < 0:
            np.testing.assert_allclose(tagged.potentials.emissions[i], -np.log(9))
    batch = torch.tensor([[1, -1, 2]])
    found = emissions_of(torch.randn(1, 3, 3, dtype=torch.float64), batch, map_labels(["O", "B-A", "I-A"]))
    np.testing.assert_allclose(found[0, 1].numpy(), -np.log(3))


def test_texts_beside_it_change_nothing(made: Any) -> None:
    for family in ("bert", "deberta-v2"):
        tagger = load_tagger(made(family))
        together = tagger.potentials([*TEXTS, "word " * 200])
        for text, tagged in zip(TEXTS, together, strict=False):
            [alone] = tagger.potentials([text])
            np.testing.assert_allclose(alone.potentials.emissions, tagged.potentials.emissions, atol=1e-5)


def test_empty_and_odd_texts(made: Any) -> None:
    tagger = load_tagger(made("roberta"))
    texts = ["", "   ", "\ud800 lone", "a" * 5_000, "\x00\x01", "[SEP] </s> <pad>"]
    found = tagger.potentials(texts)
    assert [one.text for one in found] == texts
    for one in found:
        assert one.potentials.length == len(one.tokens)
        assert not np.isnan(one.potentials.emissions).any()


class Spy:
    """Passes batches on and remembers them."""

    def __init__(self, tagger: WindowTagger) -> None:
        self.batches: list[Batch] = []
        self._emit = tagger.model.emit
        object.__setattr__(tagger.model, "emit", self)

    def __call__(self, batch: Batch) -> torch.Tensor:
        self.batches.append(batch)
        return self._emit(batch)


def test_batches_hold_windows_of_similar_length(made: Any) -> None:
    tagger = load_checkpoint_tagger(str(made("bert")))
    spy = Spy(tagger)
    rng = np.random.default_rng(4)
    tagger.potentials(["a " * int(n) for n in rng.integers(1, 60, 64)])
    assert [len(batch.ids) for batch in spy.batches] == [8] * 8
    sizes = [batch.mask.sum(dim=1) for batch in spy.batches]
    assert max(int(size.max() - size.min()) for size in sizes) <= 15
    assert all(int(a.min()) >= int(b.max()) for a, b in pairwise(sizes))


def test_labels_without_meaning_are_refused_with_what_to_do(made: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"mapping file .*SURESPAN_MODEL_MAP.* what the labels"):
        map_labels(["LABEL_0", "LABEL_1"])
    named = map_labels(["LABEL_0", "LABEL_1"], LabelMapping(labels={"LABEL_0": "O", "LABEL_1": "PER"}))
    assert named.space.classes == ("PER",)
    with pytest.raises(InvalidModel, match="expected classes of the checkpoint"):
        map_labels(IOB2, LabelMapping(classes={"PERSON": "PER"}))
    with pytest.raises(InvalidModel, match="leave a class"):
        map_labels(["O", "PER"], LabelMapping(classes={"PER": None}))
    path = tmp_path / "bad.json"
    for content in ("[]", '{"clases": {}}', '{"scheme": "XX"}', '{"classes": {"a": 1}}', "{", '{"languages": "en"}'):
        path.write_text(content)
        with pytest.raises(InvalidModel, match=r"expected .* got"):
            load_tagger(made("bert"), options=TaggerOptions(mapping=path))
