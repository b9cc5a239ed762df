"""BERT-BiLSTM-CRF: it learns, stops, continues to the same weights, and predicts the same once saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console
from torch import Tensor

from backend.cli import main
from backend.tagger.checkpoints import CHECKPOINT_FILE
from backend.tagger.encoder.network import EncoderNetwork, HeadConfig
from backend.tagger.encoder.samples import encode_texts
from backend.tagger.encoder.saved import load_encoder_tagger
from backend.tagger.encoder.training import EncoderTrainer, EncoderTraining, evaluate, parameter_groups
from backend.tagger.encoder.training_run import train_encoder
from backend.tagger.errors import InvalidModel, InvalidTraining
from backend.tagger.hf.batches import collate
from backend.tagger.hf.loading import load_encoder, load_tokenizer
from backend.tagger.hf.subwords import Subworder
from backend.tagger.hf.tagger import WindowTagger
from backend.tagger.loading import load_tagger
from backend.tagger.model import load_model
from backend.tagger.model_files import Header, read_header
from backend.tagger.options import TaggerOptions
from backend.tagger.training_data import Material, gather
from conformal.trellis.kbest import kbest
from tests.support import checkpoints
from tests.support.paths import SAMPLE
from tests.support.taggers import reworded

pytestmark = pytest.mark.heavy
QUIET = Console(quiet=True)
CONFIG = EncoderTraining(
    epochs=6,
    seed=2,
    batch_tokens=200,
    rate=1e-2,
    encoder_rate=3e-3,
    dropout=0.1,
    patience=6,
    head=HeadConfig(hidden=16),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small encoder: a BERT without a head."""
    from transformers import AutoModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    bare = tmp_path_factory.mktemp("encoder") / "tiny-encoder"
    tokenizer = checkpoints.make_tokenizer("bert", bare, lower=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        model = AutoModel.from_config(checkpoints.make_config("bert", tokenizer, ["O"], initializer_range=0.1))
    model.save_pretrained(bare)
    tokenizer.save_pretrained(bare)
    return bare


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    data = reworded(tmp_path_factory.mktemp("data"))
    return gather([data], dev=[data], console=QUIET)


@pytest.fixture(scope="module")
def trained(folder: Path, material: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("trained") / "tiny-encoder-tagger"
    config = replace(CONFIG, epochs=30, patience=30, batch_tokens=300)
    train_encoder(material, out, encoder=str(folder), config=config, name="tiny-encoder", console=QUIET)
    return out


def make_trainer(folder: Path, material: Material, config: EncoderTraining = CONFIG) -> EncoderTrainer:
    subworder = Subworder(load_tokenizer(folder))
    base = load_encoder(folder)
    base.requires_grad_(True)
    space = material.space
    samples = encode_texts(material.train, space, subworder=subworder, limit=62, margin=7).samples
    network = EncoderNetwork(base, config.head, space, generator=torch.Generator().manual_seed(config.seed))
    return EncoderTrainer(network, subworder, space, train=samples, dev=samples, config=config)


def weights(trainer: EncoderTrainer) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in trainer.network.state_dict().items()}


def test_it_learns_the_sample(trained: Path, material: Material) -> None:
    tagger = load_tagger(trained)
    assert isinstance(tagger, WindowTagger)
    right = total = 0
    for text, tagged in zip(material.train, tagger.potentials([t.text for t in material.train]), strict=True):
        best = kbest(tagged.potentials, 1).labels[0]
        spans = {
            (tagged.tokens[s.start].start, tagged.tokens[s.end - 1].end, s.label) for s in tagger.space.spans(best)
        }
        right += len(spans & set(text.spans))
        total += len(text.spans)
        assert tagged.seen
    assert right > 0.8 * total
    assert not any(tagged.seen for tagged in tagger.potentials(["A text never met before."]))


def test_the_saved_file_is_of_the_same_format_and_name(trained: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == ["model.safetensors"]
    tagger = load_tagger(trained)
    assert (tagger.name, tagger.hash) == ("tiny-encoder", tagger.base_hash)
    for options in (TaggerOptions(), TaggerOptions(int8=True)):
        loaded = load_tagger(trained, options=options)
        assert read_header(trained, options) == Header(loaded.name, loaded.hash, loaded.space.classes)
        assert loaded.base_hash == tagger.hash
    with pytest.raises(InvalidModel, match="of the kind 'encoder'"):
        load_model(trained)
    with (trained.parent / "damaged.safetensors").open("wb") as stream:
        content = bytearray((trained / "model.safetensors").read_bytes())
        content[-1] ^= 1
        stream.write(content)
    with pytest.raises(InvalidModel, match="match its hash"):
        load_encoder_tagger(trained.parent / "damaged.safetensors")


def test_predictions_are_the_same_before_and_after_saving(folder: Path, material: Material, tmp_path: Path) -> None:
    kept: list[EncoderNetwork] = []
    config = replace(CONFIG, epochs=1)
    trainer = make_trainer(folder, material, config)
    list(trainer.run())
    kept.append(trainer.network)
    train_encoder(material, tmp_path / "m", encoder=str(folder), config=config, console=QUIET)
    loaded = load_encoder_tagger(tmp_path / "m")
    with torch.inference_mode():
        for sample in trainer.train:
            batch = collate([sample.piece], trainer.subworder)
            # Two trainings on two threads may add up in another order: the last bit of a float32 is not promised.
            np.testing.assert_allclose(kept[0](batch).numpy(), loaded.model.emit(batch).numpy(), atol=1e-5)
    before = evaluate(trainer.network, trainer.space, samples=trainer.train, subworder=trainer.subworder)
    assert before == evaluate(loaded.model.emit, trainer.space, samples=trainer.train, subworder=trainer.subworder)  # type: ignore[arg-type]


def test_a_killed_run_continues_to_the_same_weights(folder: Path, material: Material, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=2, save_every=2)
    whole = make_trainer(folder, material, config)
    list(whole.run(checkpoints=tmp_path / "whole"))

    class Killed(Exception):
        pass

    def kill(epoch: int, step: int, steps: int, loss: float) -> None:
        assert steps > 3
        assert loss > 0
        if (epoch, step) == (2, 3):
            raise Killed

    broken = make_trainer(folder, material, config)
    with pytest.raises(Killed):
        list(broken.run(checkpoints=tmp_path / "part", progress=kill))
    continued = make_trainer(folder, material, config)
    assert continued.resume(tmp_path / "part") == (1, 2)
    [report] = list(continued.run(checkpoints=tmp_path / "part"))
    assert report.epoch == 2
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(continued)[name]), name
    with pytest.raises(InvalidTraining, match="give the same options"):
        make_trainer(folder, material, replace(config, rate=0.5)).resume(tmp_path / "part")
    at = next(i for i, text in enumerate(material.train) if text.spans)
    span, *others = material.train[at].spans
    label = next(name for name in material.space.classes if name != span.label)
    corrected = replace(material.train[at], spans=(span._replace(label=label), *others))
    changed = replace(material, train=[*material.train[:at], corrected, *material.train[at + 1 :]])
    with pytest.raises(InvalidTraining, match="a text or a label has changed since"):
        make_trainer(folder, changed, config).resume(tmp_path / "part")
    assert make_trainer(folder, material, config).resume(tmp_path / "nothing") == (0, 0)


def test_accumulated_batches_make_the_step_of_one_large_batch(folder: Path, material: Material) -> None:
    steps: list[dict[str, Tensor]] = []
    for budget, accumulate in ((100_000, 1), (100, 10_000)):
        config = replace(CONFIG, epochs=1, dropout=0.0, batch_tokens=budget, accumulate=accumulate)
        trainer = make_trainer(folder, material, config)
        trainer.network.encoder.config.hidden_dropout_prob = 0.0
        for module in trainer.network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        assert trainer.steps_per_epoch == 1
        list(trainer.run())
        steps.append(weights(trainer))
    for name, value in steps[0].items():
        if "attention" in name and name.endswith("key.bias"):
            continue  # no gradient in theory; Adam turns rounding into steps
        np.testing.assert_allclose(value.numpy(), steps[1][name].numpy(), atol=2e-3, err_msg=name)


def test_lower_layers_learn_more_slowly_and_a_frozen_encoder_not_at_all(folder: Path, material: Material) -> None:
    trainer = make_trainer(folder, material)
    rates = {
        id(weight): group["largest"]
        for group in parameter_groups(trainer.network, CONFIG)
        for weight in group["params"]
    }  # type: ignore[attr-defined]
    named = dict(trainer.network.named_parameters())

    def rate(part: str) -> float:
        return next(rates[id(weight)] for name, weight in named.items() if part in name)

    assert rate("emit.") == rate("transitions") == CONFIG.rate
    assert rate("layer.1.") == CONFIG.encoder_rate
    assert rate("layer.0.") == pytest.approx(CONFIG.encoder_rate * CONFIG.decay)
    assert rate("word_embeddings") == pytest.approx(CONFIG.encoder_rate * CONFIG.decay**2)

    frozen = make_trainer(folder, material, replace(CONFIG, epochs=1, head=HeadConfig(hidden=16, frozen=True)))
    before = weights(frozen)
    list(frozen.run())
    after = weights(frozen)
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert "encoder" not in changed
    assert {"rightward", "leftward", "emit", "transitions"} <= changed


def test_the_command_trains_an_encoder(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    common = ["train", "--data", str(SAMPLE), "--dev", str(SAMPLE), "--out", str(out), "--encoder", str(folder)]
    answer = CliRunner().invoke(main, [*common, "--epochs", "1", "--freeze", "--hidden", "8", "--accumulate", "2"])
    assert answer.exit_code == 0, answer.output
    assert "saved m (" in answer.output
    assert not (out / CHECKPOINT_FILE).exists()
    assert load_tagger(out).name == "m"
    wrong = CliRunner().invoke(main, [*common, "--word-dropout", "0.1"])
    assert wrong.exit_code == 2
    assert "--word-dropout cannot be used with --encoder" in wrong.output
    without = CliRunner().invoke(main, ["train", "--data", str(SAMPLE), "--out", str(out), "--freeze"])
    assert "--freeze is only used with --encoder" in without.output
    assert "give --data FILE or --project ID" in CliRunner().invoke(main, ["train", "--out", str(out)]).output
