"""Transitions and temperature fitted to labelled data: the likelihood rises, as the chain of the tagger says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.domain.records import TextSpan
from backend.tagger.errors import InvalidTraining
from backend.tagger.hf.checkpoint import describe_checkpoint
from backend.tagger.hf.fitting import fit_chain
from backend.tagger.hf.loading import load_checkpoint_tagger
from backend.tagger.loading import load_tagger
from backend.tagger.readers import LabelledText, read_labelled
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagger
from conformal.trellis.forward import log_probability
from tests.support import checkpoints
from tests.support.paths import SAMPLE

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-MISC", "I-MISC"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoints.make_checkpoint(tmp_path / "own-ner", "bert", labels=LABELS)


def mean_loss(tagger: Tagger, texts: list[LabelledText]) -> float:
    """Mean -log P of the true labelings, by the library's own decoder."""
    losses = []
    for text, tagged in zip(texts, tagger.potentials([text.text for text in texts]), strict=True):
        spans = to_token_spans(text.spans, tagged.tokens, text=text.text, boundaries=tagged.boundaries).spans
        losses.append(-log_probability(tagged.potentials, tagger.space.ids(spans, len(tagged.tokens))))
    return float(np.mean(losses))


@pytest.mark.heavy
def test_the_command_fits_saves_and_changes_the_hash(folder: Path) -> None:
    texts = list(read_labelled(SAMPLE).texts)
    before = load_tagger(folder)
    answer = CliRunner().invoke(main, ["fit-transitions", "--model", str(folder), "--data", str(SAMPLE)])
    assert answer.exit_code == 0, answer.output
    after = load_checkpoint_tagger(str(folder))
    assert after.hash != before.hash
    assert after.hash[:8] in answer.output
    sentences = int(answer.output.split(" sentences")[0].replace(",", ""))
    said = [
        float(part)
        for part in answer.output.split("a sentence ")[1].split("\n")[0].replace(",", "").split()
        if "." in part
    ]
    assert said[0] * sentences / len(texts) == pytest.approx(mean_loss(before, texts), rel=1e-3)
    assert said[1] * sentences / len(texts) == pytest.approx(mean_loss(after, texts), rel=1e-3)
    assert said[1] < said[0]
    assert not np.isfinite(after.chain.transitions[0, 2])  # O -> I-PER stays impossible
    assert all(tagged.seen for tagged in after.potentials([texts[0].text]))


def test_a_hub_id_needs_a_folder_of_its_own_and_a_pointer_finds_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "fitted"
    answer = CliRunner().invoke(
        main, ["fit-transitions", "--model", str(folder), "--data", str(SAMPLE), "--out", str(out), "--limit", "5"]
    )
    assert answer.exit_code == 0, answer.output
    assert sorted(path.name for path in out.iterdir()) == ["surespan-chain.safetensors", "surespan.json"]
    assert not (folder / "surespan-chain.safetensors").exists()
    found = describe_checkpoint(str(out))
    assert (found.name, found.folder) == ("fitted", folder.resolve())
    assert load_tagger(out).hash == found.hash != describe_checkpoint(str(folder)).hash


def test_labels_that_the_checkpoint_cannot_say_are_left_out_and_counted(tmp_path: Path) -> None:
    folder = checkpoints.make_checkpoint(tmp_path / "io", "bert", labels=["O", "PER"])
    model, labels = load_checkpoint_tagger(str(folder)).model, describe_checkpoint(str(folder)).labels
    neighbours = LabelledText("Anna Bob left", (TextSpan(0, 4, "PER"), TextSpan(5, 8, "PER")))
    fine = LabelledText("Anna Bob left", (TextSpan(0, 8, "PER"),))
    unknown = LabelledText("Lima", (TextSpan(0, 4, "LOC"),))
    _, report = fit_chain(model, labels, texts=[neighbours, fine, unknown], rounds=3)
    assert report.sentences == 1
    assert sorted(report.left_out.values()) == [1, 1]
    with pytest.raises(InvalidTraining, match="got none"):
        fit_chain(model, labels, texts=[unknown])
