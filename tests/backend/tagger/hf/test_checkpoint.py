"""Where checkpoints come from, what is said about them before they are loaded, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from torch import nn

from backend.settings import load_settings
from backend.tagger.configured import configured_header, load_configured
from backend.tagger.errors import InvalidModel
from backend.tagger.hf.chain import load_chain, save_chain, structural
from backend.tagger.hf.checkpoint import describe_checkpoint, find_folder
from backend.tagger.hf.int8 import Int8Linear, quantise
from backend.tagger.hf.mapping import map_labels
from backend.tagger.loading import load_tagger
from backend.tagger.model_files import Header, read_header
from backend.tagger.options import TaggerOptions
from tests.support import checkpoints
from tests.support.checkpoints import TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make_checkpoint(tmp_path_factory.mktemp("made") / "own-ner", "bert")


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "own-ner"))


def test_the_header_is_known_before_loading_and_is_what_loading_gives(folder: Path) -> None:
    for options in (TaggerOptions(), TaggerOptions(int8=True)):
        tagger = load_tagger(folder, options=options)
        assert read_header(folder, options) == Header(tagger.name, tagger.hash, tagger.space.classes)
        assert tagger.base_hash == describe_checkpoint(str(folder)).hash
    settings = load_settings(model=str(folder), int8=True, torch_threads=1, device="cpu")
    assert configured_header(settings) == Header(
        "own-ner", load_configured(settings).hash, ("PER", "LOC", "ORG", "MISC")
    )


def test_everything_that_decides_potentials_is_in_the_hash(copy: Path, tmp_path: Path) -> None:
    mapping = tmp_path / "map.json"
    mapping.write_text('{"classes": {"MISC": null}}')
    found = describe_checkpoint(str(copy))
    seen = {
        found.hash,
        describe_checkpoint(str(copy), int8=True).hash,
        describe_checkpoint(str(copy), mapping_file=mapping).hash,
    }
    moved = Path(shutil.copytree(copy, tmp_path / "elsewhere"))
    assert describe_checkpoint(str(moved)).hash == found.hash
    save_chain(structural(found.labels), copy / "surespan-chain.safetensors")
    seen.add(describe_checkpoint(str(copy)).hash)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (copy / name).write_text((copy / name).read_text() + "\n")
        seen.add(describe_checkpoint(str(copy)).hash)
    with (copy / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"\x01")
    seen.add(describe_checkpoint(str(copy)).hash)
    assert len(seen) == 8


def test_a_hub_id_is_found_in_the_cache_without_the_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--owner--own-ner"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    tagger = load_tagger("owner/own-ner")
    assert (tagger.name, tagger.hash) == ("own-ner", describe_checkpoint(str(folder)).hash)
    assert load_tagger(f"owner/own-ner@{commit}").hash == tagger.hash
    with pytest.raises(InvalidModel, match=r"the hub is out of reach.*hf download owner/other"):
        load_tagger("owner/other")
    assert read_header("owner/other") is None


def test_a_hub_out_of_reach_is_said_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InvalidModel, match=r"the hub is out of reach.*HF_HOME.*SURESPAN_MODEL"):
        find_folder("owner/name")
    with pytest.raises(InvalidModel, match="neither"):
        find_folder("./no/such/folder")


def test_pickled_weights_are_refused_with_what_to_do(copy: Path) -> None:
    torch.save({}, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(InvalidModel, match=r"expected weights in safetensors.*pytorch_model.bin.*save_pretrained"):
        load_tagger(copy)
    assert read_header(copy) is None


def test_code_of_a_checkpoint_is_never_run(copy: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (copy / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Evil: pass\n")
    config = json.loads((copy / "config.json").read_text())
    config["model_type"] = "unheard-of"
    config["auto_map"] = {"AutoModelForTokenClassification": "evil.Evil", "AutoConfig": "evil.Evil"}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidModel, match=r"expected a .* that this release can load"):
        load_tagger(copy)
    assert not ran.exists()


def test_an_encoder_without_a_classifier_is_sent_to_training(tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = checkpoints.make_checkpoint(tmp_path / "ner", "bert")
    bare = tmp_path / "bare"
    AutoModel.from_pretrained(folder).save_pretrained(bare)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, bare / name)
    with pytest.raises(InvalidModel, match="surespan train --encoder"):
        load_tagger(bare)


def test_broken_folders_are_named(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(InvalidModel, match="expected a checkpoint"):
        load_tagger(tmp_path)
    (copy / "model.safetensors").write_bytes(b"{}")
    with pytest.raises(InvalidModel, match="look whether its files are whole"):
        load_tagger(copy)
    (copy / "config.json").write_text("[]")
    with pytest.raises(InvalidModel, match="expected an object"):
        load_tagger(copy)


def test_a_chain_of_other_labels_is_refused(copy: Path) -> None:
    other = map_labels(["O", "B-A", "I-A"])
    path = copy / "surespan-chain.safetensors"
    save_chain(structural(other), path)
    back = load_chain(path, other)
    np.testing.assert_array_equal(back.transitions, structural(other).transitions)
    with pytest.raises(InvalidModel, match="run `surespan fit-transitions` again"):
        load_tagger(copy)


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_int8_stays_close_and_does_not_see_the_texts_beside_it(family: str, tmp_path: Path) -> None:
    folder = checkpoints.make_checkpoint(tmp_path / "own-ner", family)
    plain, small = load_tagger(folder), load_tagger(folder, options=TaggerOptions(int8=True))
    assert plain.hash != small.hash
    together = small.potentials(TEXTS)
    for before, after in zip(plain.potentials(TEXTS), together, strict=True):
        p, q = np.exp(before.potentials.emissions), np.exp(after.potentials.emissions)
        assert np.abs(p - q).mean() < 0.01
        assert (p != q).any()
    for text, tagged in zip(TEXTS, together, strict=True):
        [alone] = small.potentials([text])
        np.testing.assert_allclose(alone.potentials.emissions, tagged.potentials.emissions, atol=1e-6)


def test_int8_layers_are_the_nearest_integers() -> None:
    generator = torch.Generator().manual_seed(3)
    layer = nn.Linear(64, 16)
    with torch.no_grad():
        layer.weight.normal_(generator=generator)
    x = torch.randn(5, 3, 64, generator=generator)
    with torch.inference_mode():
        exact, near = layer(x), Int8Linear(layer)(x)
    assert near.shape == exact.shape
    assert float((near - exact).abs().max()) < 0.02 * float(exact.abs().max())
    network = nn.ModuleDict({"a": nn.Linear(2, 2), "classifier": nn.Linear(2, 2)})
    assert quantise(network, keep=frozenset({"classifier"})) == 1
    assert isinstance(network["classifier"], nn.Linear)


def test_devices_are_checked(folder: Path) -> None:
    with pytest.raises(InvalidModel, match="expected int8 on the CPU"):
        load_tagger(folder, options=TaggerOptions(int8=True, device="cuda"))
    if not torch.cuda.is_available():
        with pytest.raises(InvalidModel, match="expected a GPU"):
            load_tagger(folder, options=TaggerOptions(device="cuda"))
