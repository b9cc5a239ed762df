import json
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from seqeval.metrics import f1_score

import conformal
from backend.tagger import network_tagger as tagger_module
from backend.tagger.entity_f1 import EntityCounter
from backend.tagger.errors import InvalidModel, InvalidText, TaggerError
from backend.tagger.loading import load_tagger
from backend.tagger.model import MODEL_FILE, load_model, save_model
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import read_conll
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagger
from backend.tagger.tokens import tokenize
from tests.support.waiting import WAIT

TEXTS = [
    "Anna Berg wohnt in Wien.",
    "",
    " \n\t ",
    "Mary O'Neil moved to Boston. Nobody answered the phone. She sang!",
    "👩‍👧 東京 \r\n Zoë",
    "Il treno è in ritardo.",
]


@pytest.fixture(scope="session")
def tiny(tiny_model: Path) -> NetworkTagger:
    return load_tagger(tiny_model)


def test_one_tagged_per_text_in_order(tiny: Tagger) -> None:
    tagged = tiny.potentials(TEXTS)
    assert [one.text for one in tagged] == TEXTS
    for one in tagged:
        assert list(one.tokens) == tokenize(one.text)
        assert one.potentials.emissions.shape == (len(one.tokens), len(tiny.space))
        assert np.isfinite(one.potentials.emissions).all()
        assert one.potentials.chain is tagged[0].potentials.chain
        assert one.boundaries == one.potentials.boundaries
    assert tagged[3].boundaries == (8, 13)
    assert tagged[1].language == tagged[2].language == "und"
    assert tiny.potentials([]) == []


def test_illegal_moves_are_minus_infinity_and_all_others_finite(tiny: NetworkTagger) -> None:
    chain = tiny.chain
    np.testing.assert_array_equal(np.isneginf(chain.transitions), ~tiny.space.allowed)
    np.testing.assert_array_equal(np.isneginf(chain.start), ~tiny.space.allowed_start)
    assert np.isfinite(chain.end).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=40), max_size=4))
def test_arbitrary_text_is_tagged(tiny: Tagger, texts: list[str]) -> None:
    for text, one in zip(texts, tiny.potentials(texts), strict=True):
        assert one.text == text
        assert all(0 < j < len(one.tokens) for j in one.boundaries)


def test_potentials_do_not_depend_on_the_texts_beside(tiny: Tagger, sample: Path) -> None:
    texts = [text.text for text in read_conll(sample).texts] + [" ".join(["Wien ist schön"] * 300)]
    together = tiny.potentials(texts)
    for text, one in zip(texts, together, strict=True):
        alone = tiny.potentials([text])[0]
        np.testing.assert_allclose(one.potentials.emissions, alone.potentials.emissions, atol=2e-5, rtol=1e-5)
        assert (one.language, one.boundaries) == (alone.language, alone.boundaries)


def test_a_text_of_several_sentences_is_tagged_sentence_by_sentence(tiny: Tagger) -> None:
    parts = ["Anna Berg wohnt in Wien. ", "Nobody answered the phone."]
    whole = tiny.potentials(["".join(parts)], languages=["en"])[0]
    alone = np.concatenate([one.potentials.emissions for one in tiny.potentials(parts)])
    assert whole.boundaries == (6,)
    np.testing.assert_allclose(whole.potentials.emissions, alone, atol=2e-5)


def test_windows_cover_long_sentences_and_agree_with_the_whole(
    tiny: NetworkTagger, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = " ".join(f"Anna Berg kam nach Wien und ging nach Linz zu Jonas {i}" for i in range(60))
    windows = tiny.potentials([text], languages=["de"])[0]
    assert len(windows.tokens) > 2 * tagger_module._WINDOW
    assert windows.boundaries == ()
    monkeypatch.setattr(tagger_module, "_WINDOW", 10_000)
    whole = tiny.potentials([text], languages=["de"])[0]
    # With 32 tokens of context on either side, what lies further away hardly matters.
    assert np.abs(windows.potentials.emissions - whole.potentials.emissions).max() < 0.05


@pytest.mark.parametrize("unit", ["Anna Berg lebt. ", "日本。", "a", "👩‍👧 ", "word "])
def test_a_hundred_thousand_characters(tiny: Tagger, unit: str) -> None:
    text = unit * (100_000 // len(unit))
    one = tiny.potentials([text])[0]
    assert one.potentials.length == len(tokenize(text))
    assert np.isfinite(one.potentials.emissions).all()


def test_threads_share_a_tagger(tiny: Tagger, sample: Path) -> None:
    texts = [text.text for text in read_conll(sample).texts]
    expected = [one.potentials.emissions for one in tiny.potentials(texts)]
    results: dict[int, list[np.ndarray]] = {}

    def run(i: int) -> None:
        results[i] = [one.potentials.emissions for one in tiny.potentials(texts)]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for found in results.values():
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_the_semaphore_bounds_forward_passes(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tagger = load_tagger(tiny_model, concurrency=2)
    running, most = 0, 0
    lock = threading.Lock()
    gate = threading.Barrier(2, timeout=WAIT)
    inner = tagger._network.word_vectors

    def watched(*args: object, **kwargs: object) -> object:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait()  # only passes when two are inside at once
        made = inner(*args, **kwargs)  # type: ignore[arg-type]
        with lock:
            running -= 1
        return made

    monkeypatch.setattr(tagger._network, "word_vectors", watched)
    threads = [threading.Thread(target=tagger.potentials, args=(["Anna Berg"],)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 2


def test_wrong_arguments(tiny: Tagger, tiny_model: Path) -> None:
    with pytest.raises(InvalidText, match="put it in a list"):
        tiny.potentials("text")
    with pytest.raises(InvalidText, match="got 1 for 2 texts"):
        tiny.potentials(["a", "b"], languages=["de"])
    with pytest.raises(InvalidText, match="got int"):
        tiny.potentials([3])  # type: ignore[list-item]
    with pytest.raises(TaggerError, match="concurrency of at least 1"):
        load_tagger(tiny_model, concurrency=0)


def test_seqeval_agrees_with_our_counts(tiny: Tagger, sample: Path) -> None:
    counter = EntityCounter()
    true_tags, found_tags = [], []
    for text, one in zip(
        (texts := read_conll(sample).texts), tiny.potentials([text.text for text in texts]), strict=True
    ):
        gold = to_token_spans(text.spans, one.tokens, text=text.text).spans
        found = tiny.space.spans(conformal.kbest(one.potentials, 1).labels[0])
        counter.add(gold, found)
        true_tags.append(tiny.space.decode(tiny.space.ids(gold, len(one.tokens))))
        found_tags.append(tiny.space.decode(tiny.space.ids(found, len(one.tokens))))
    assert counter.total.f1 == pytest.approx(f1_score(true_tags, found_tags), abs=1e-12)
    assert counter.total.f1 > 0.8


def test_training_texts_are_recognised(tiny: Tagger, sample: Path) -> None:
    fresh = [text.text for text in read_conll(sample).texts[:3]]
    texts = [text + " -" for text in fresh]  # as the small model was trained
    recased = [texts[0].upper().replace(" .", "."), "  " + texts[1]]
    new = ["Never read before.", "", texts[0] + " Ja.", *fresh]
    seen = [one.seen for one in tiny.potentials([*texts, *recased, *new])]
    assert seen == [True] * 5 + [False] * 6


def test_saving_what_was_loaded_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    network, info, seen = load_model(tiny_model)
    again = save_model(network, tmp_path, info=info, seen=seen)
    assert again.hash == info.hash
    # safetensors writes its metadata in any order, so the content hash is compared, not the bytes.
    assert load_model(tmp_path).info == info


# --- the saved file -------------------------------------------------------------------------------------------


def rewritten(source: Path, target: Path, *, header: dict | None = None, digest: str | None = None) -> Path:
    with safe_open(source / MODEL_FILE, framework="np") as stream:
        metadata = stream.metadata()
        tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118
    if header is not None:
        metadata["surespan"] = json.dumps(header)
    if digest is not None:
        metadata["hash"] = digest
    target.mkdir()
    save_file(tensors, target / MODEL_FILE, metadata=metadata)
    return target


def test_damage_is_noticed(tiny_model: Path, tmp_path: Path) -> None:
    load_model(rewritten(tiny_model, tmp_path / "same"))
    with pytest.raises(InvalidModel, match="match its hash"):
        load_model(rewritten(tiny_model, tmp_path / "hash", digest="0" * 64))
    with pytest.raises(InvalidModel, match="expected format surespan-tagger version 1"):
        load_model(rewritten(tiny_model, tmp_path / "v", header={"format": "surespan-tagger", "format_version": 9}))
    with pytest.raises(InvalidModel, match="expected a Surespan model description"):
        load_model(rewritten(tiny_model, tmp_path / "h", header={"format": "surespan-tagger", "format_version": 1}))
    with pytest.raises(InvalidModel, match="got nothing there"):
        load_model(tmp_path / "none")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / MODEL_FILE).write_bytes(b"not a model")
    with pytest.raises(InvalidModel, match="expected a safetensors file"):
        load_model(tmp_path / "broken")
    data = bytearray((tiny_model / MODEL_FILE).read_bytes())
    data[-5] ^= 1
    (tmp_path / "broken" / MODEL_FILE).write_bytes(bytes(data))
    with pytest.raises(InvalidModel, match="match its hash"):
        load_model(tmp_path / "broken")
