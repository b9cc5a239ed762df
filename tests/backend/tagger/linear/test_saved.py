from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from backend.tagger.compiled.loading import load_network
from backend.tagger.errors import InvalidModel
from backend.tagger.features import FeatureConfig
from backend.tagger.linear.learning import learn
from backend.tagger.linear.saved import Base, load_base, load_linear_tagger, save_linear
from backend.tagger.linear.tagger import LinearTagger
from backend.tagger.linear.training_run import suits_linear, train_linear
from backend.tagger.loading import load_tagger
from backend.tagger.model import save_model
from backend.tagger.model_files import BUNDLED, MODEL_FILE, Kind, model_kind, read_header
from backend.tagger.model_info import ModelInfo, NetworkConfig
from backend.tagger.network import Network
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.saved_file import digest_of
from backend.tagger.tagger import Tagger
from backend.tagger.training_data import Material
from backend.tagger.training_texts import fingerprints
from conformal.labels import LabelSpace
from tests.support.toy_texts import toy_texts

TEXTS = [one.text for one in toy_texts(12, seed=8)]


def small_network(folder: Path) -> str:
    features = FeatureConfig(word_rows=64, prefix_rows=16, suffix_rows=16, shape_rows=16, ngram_rows=64)
    config = NetworkConfig(word_width=4, affix_width=4, shape_width=4, ngram_width=4, mixed_width=8, hidden=6, layers=1)
    network = Network(features, config, LabelSpace(["Drug"]), generator=torch.Generator().manual_seed(1))
    info = ModelInfo("small", ("Drug",), ("en",), features, config, {"ancestors": ["first"]})
    save_model(network, folder, info=info, seen=fingerprints(["an old text"]))
    return str(folder)


def assert_same(one: Tagger, other: Tagger) -> None:
    for a, b in zip(one.potentials(TEXTS), other.potentials(TEXTS), strict=True):
        np.testing.assert_array_equal(a.potentials.emissions, b.potentials.emissions)
        np.testing.assert_array_equal(a.potentials.transitions, b.potentials.transitions)
        np.testing.assert_array_equal(a.potentials.start, b.potentials.start)
        np.testing.assert_array_equal(a.potentials.end, b.potentials.end)
        assert a.boundaries == b.boundaries


def test_what_is_loaded_is_what_was_learnt_to_the_last_bit(tmp_path: Path) -> None:
    learnt = learn(toy_texts(20, seed=1))
    info = save_linear(learnt, tmp_path, name="toy", languages=["en"], seen=fingerprints([TEXTS[0]]))
    loaded = load_tagger(tmp_path)
    assert isinstance(loaded, LinearTagger)
    assert_same(LinearTagger.of(learnt, languages=["en"]), loaded)
    assert (loaded.name, loaded.hash, loaded.base_hash, loaded.ancestors) == ("toy", info.hash, info.hash, ())
    assert (loaded.space.classes, loaded.languages) == (("Drug", "Symptom"), ("en",))
    assert [one.seen for one in loaded.potentials(TEXTS[:2])] == [True, False]


def test_the_header_says_it_all_without_loading(tmp_path: Path) -> None:
    info = save_linear(learn(toy_texts(20, seed=1)), tmp_path, name="toy", languages=[])
    assert model_kind(tmp_path) is Kind.LINEAR
    header = read_header(tmp_path)
    assert header is not None
    assert (header.name, header.hash, header.classes) == ("toy", info.hash, ("Drug", "Symptom"))


def test_learning_twice_gives_the_same_hash(tmp_path: Path) -> None:
    first, second = (
        save_linear(learn(toy_texts(20, seed=1)), tmp_path / name, name="toy", languages=[]) for name in ("a", "b")
    )
    assert first.hash == second.hash
    other = save_linear(learn(toy_texts(20, seed=2)), tmp_path / "c", name="toy", languages=[])
    assert other.hash != first.hash


def test_another_network_is_stored_inside(tmp_path: Path) -> None:
    base = load_base(small_network(tmp_path / "net"))
    learnt = learn(toy_texts(20, seed=1), base=base.tagger)
    assert learnt.report.uses_base
    info = save_linear(learnt, tmp_path / "m", name="toy", languages=[], base=base, seen=fingerprints(["a new text"]))
    (tmp_path / "net" / MODEL_FILE).unlink()
    loaded = load_tagger(tmp_path / "m")
    assert_same(LinearTagger.of(learnt, base=base.tagger), loaded)
    # It has learnt what the network has: labels of either never calibrate it.
    assert loaded.ancestors == info.ancestors == ("first", base.tagger.hash)
    assert [one.seen for one in loaded.potentials(["An old text", "A new text", "A text"])] == [True, True, False]


def test_the_bundled_network_is_named_by_its_hash(tmp_path: Path) -> None:
    base = load_base(BUNDLED)
    learnt = learn(toy_texts(12, seed=1), base=base.tagger)
    info = save_linear(learnt, tmp_path, name="toy", languages=[], base=base)
    assert (info.bundled, info.base) == (True, base.tagger.hash)
    assert_same(LinearTagger.of(learnt, base=base.tagger), load_tagger(tmp_path))
    assert base.tagger is load_base(BUNDLED).tagger  # in memory once


def test_another_bundled_network_is_refused(tmp_path: Path) -> None:
    folder = small_network(tmp_path / "net")
    other = NetworkTagger(load_network(folder))
    learnt = learn(toy_texts(12, seed=1), base=other)
    save_linear(learnt, tmp_path / "m", name="toy", languages=[], base=Base(BUNDLED, other))
    with pytest.raises(InvalidModel, match=r"expected the bundled network .* train it again"):
        load_tagger(tmp_path / "m")


def changed(folder: Path, **fields: object) -> None:
    """Write the model again with other words in its header and a hash that fits."""
    with safe_open(folder / MODEL_FILE, framework="numpy") as stream:
        said = json.loads(stream.metadata()["surespan"])
    tensors = load_file(folder / MODEL_FILE)
    header = json.dumps({**said, **fields}, sort_keys=True)
    save_file(tensors, folder / MODEL_FILE, metadata={"surespan": header, "hash": digest_of(header, tensors)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"classes": ["Drug"]}, "expected weights of the shapes"),
        ({"base": "ab"}, "expected the weights of a linear chain"),
        ({"format_version": 99}, "use the release that wrote it"),
        ({"training": None, "classes": None}, "expected a Surespan model description"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path: Path, fields: dict[str, object], message: str) -> None:
    save_linear(learn(toy_texts(12, seed=1)), tmp_path, name="toy", languages=[])
    changed(tmp_path, **fields)
    with pytest.raises(InvalidModel, match=message):
        load_linear_tagger(tmp_path)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    save_linear(learn(toy_texts(12, seed=1)), tmp_path, name="toy", languages=[])
    content = bytearray((tmp_path / MODEL_FILE).read_bytes())
    content[-1] ^= 1
    (tmp_path / MODEL_FILE).write_bytes(content)
    with pytest.raises(InvalidModel, match="to match its hash"):
        load_linear_tagger(tmp_path)


def test_a_run_learns_from_all_texts_that_no_file_reserves(tmp_path: Path) -> None:
    texts = toy_texts(30, seed=1)
    shared = Material(train=texts[:25], held=texts[25:], dev_share=0.1)
    log = (tmp_path / "log").open("w")
    quiet = Console(file=log, width=200)
    info = train_linear(shared, tmp_path / "a", start="nothing", console=quiet)
    assert info.training["texts"] == 30
    reserved = Material(train=texts[:25], held=texts[25:])
    info = train_linear(reserved, tmp_path / "b", start="nothing", console=quiet)
    assert info.training["texts"] == 25
    log.close()
    assert "development F1" in (tmp_path / "log").read_text()
    assert suits_linear(shared)
    assert not suits_linear(Material(train=texts * 101))
