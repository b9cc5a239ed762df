import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors import safe_open

from backend.domain.records import TextSpan
from backend.tagger.checkpoints import CHECKPOINT_FILE
from backend.tagger.corpus import Variation, build_corpus, entity_free_clause, take_words, vary, without_entities
from backend.tagger.errors import InvalidTraining
from backend.tagger.features import hash_words
from backend.tagger.model import load_model
from backend.tagger.readers import LabelledText, read_conll
from backend.tagger.training import Trainer, TrainingConfig, batches
from backend.tagger.training_data import Material
from backend.tagger.training_run import train_model, train_words
from backend.tagger.training_texts import fingerprints
from conformal.labels import LabelSpace

SPACE = LabelSpace(["LOC", "MISC", "ORG", "PER"])


def trainer(sample: Path, config: TrainingConfig) -> Trainer:
    return trainer_on(read_conll(sample).texts, config)


def trainer_on(texts: Sequence[LabelledText], config: TrainingConfig) -> Trainer:
    corpus = build_corpus(texts, SPACE, features=config.features)
    return Trainer(corpus, SPACE, train=corpus.samples, dev=corpus.samples, config=config)


def test_learns_the_sample(sample: Path, tiny: TrainingConfig) -> None:
    made = trainer(sample, tiny)
    reports = list(made.run())
    assert reports[0].loss > 3 * reports[-1].loss
    assert max(report.dev.f1 for report in reports) > 0.9
    assert made.best_epoch == max(reports, key=lambda r: (r.dev.f1, -r.epoch)).epoch


def test_a_killed_run_continues_to_the_same_weights(sample: Path, tiny: TrainingConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny, epochs=4)
    whole = trainer(sample, config)
    expected = list(whole.run())

    killed = trainer(sample, config)
    run = killed.run(checkpoints=tmp_path)
    first = [next(run), next(run)]
    run.close()
    resumed = trainer(sample, config)
    assert resumed.resume(tmp_path) == 2
    rest = list(resumed.run(checkpoints=tmp_path))
    assert first + rest == expected
    for name, weight in whole.network.state_dict().items():
        np.testing.assert_array_equal(weight.numpy(), resumed.network.state_dict()[name].numpy(), err_msg=name)


def test_the_seed_decides(sample: Path, tiny: TrainingConfig) -> None:
    def losses(seed: int) -> list[float]:
        return [r.loss for r in trainer(sample, dataclasses.replace(tiny, epochs=2, seed=seed)).run()]

    assert losses(1) == losses(1)
    assert losses(1) != losses(2)


def test_another_recipes_checkpoint_is_refused(sample: Path, tiny: TrainingConfig, tmp_path: Path) -> None:
    made = trainer(sample, dataclasses.replace(tiny, epochs=1))
    list(made.run(checkpoints=tmp_path))
    assert made.resume(tmp_path / "nothing-here") == 0
    with pytest.raises(InvalidTraining, match="checkpoint of this recipe"):
        trainer(sample, dataclasses.replace(tiny, epochs=1, dropout=0.2)).resume(tmp_path)


def test_a_corrected_label_or_text_does_not_continue_a_run_on_the_old_one(
    sample: Path, tiny: TrainingConfig, tmp_path: Path
) -> None:
    """The counts of texts, tokens and words all stay the same."""
    config = dataclasses.replace(tiny, epochs=1)
    list(trainer(sample, config).run(checkpoints=tmp_path))
    texts = list(read_conll(sample).texts)
    assert trainer_on(texts, config).resume(tmp_path) == 1
    at = next(i for i, text in enumerate(texts) if text.spans)
    span = texts[at].spans[0]
    label = next(name for name in SPACE.classes if name != span.label)
    relabelled = dataclasses.replace(texts[at], spans=(span._replace(label=label), *texts[at].spans[1:]))
    swapped = [*texts[:2], texts[3], texts[2], *texts[4:]]
    for changed in ([*texts[:at], relabelled, *texts[at + 1 :]], swapped):
        with pytest.raises(InvalidTraining, match=r"a text or a label\s+has changed since.*--fresh"):
            trainer_on(changed, config).resume(tmp_path)


def test_a_model_can_start_another(sample: Path, tiny: TrainingConfig, tiny_model: Path, tmp_path: Path) -> None:
    model = load_model(tiny_model)
    config = dataclasses.replace(tiny, epochs=1, rate=1e-9, table_rate=1e-9)
    corpus = build_corpus(read_conll(sample).texts, SPACE, features=config.features)
    other = LabelSpace(["PER", "GPE", "LOC", "ORG", "MISC"])  # another order, and a class the first does not know
    again = build_corpus(read_conll(sample).texts, other, features=config.features)
    for space, samples in ((SPACE, corpus), (other, again)):
        made = Trainer(samples, space, train=samples.samples, dev=samples.samples, config=config, start=model)
        first = next(made.run(checkpoints=tmp_path / str(len(space))))
        assert first.dev.f1 > 0.8
    with pytest.raises(InvalidTraining, match="checkpoint of this recipe"):
        Trainer(corpus, SPACE, train=corpus.samples, dev=corpus.samples, config=config).resume(tmp_path / "9")
    wider = dataclasses.replace(config, network=dataclasses.replace(config.network, hidden=17))
    with pytest.raises(InvalidTraining, match="same features and widths"):
        Trainer(corpus, SPACE, train=corpus.samples, dev=corpus.samples, config=wider, start=model)


def test_a_model_has_learnt_what_those_before_it_did(
    sample: Path, tiny: TrainingConfig, tiny_model: Path, tmp_path: Path
) -> None:
    config = dataclasses.replace(tiny, epochs=1)
    start = load_model(tiny_model)
    whole = read_conll(sample).texts
    parts = [
        Material(train=list(whole[:20]), held=list(whole[20:25])),
        Material(train=list(whole[25:]), held=whole[:1]),
    ]
    line = [start]
    for place, part in enumerate(parts):
        out = tmp_path / str(place)
        train_words(part, out, config=config, start=line[-1], console=Console(quiet=True))
        line.append(load_model(out))
    assert [model.info.ancestors for model in line] == [
        (),
        (start.info.hash,),
        (start.info.hash, line[1].info.hash),
    ]
    assert set(start.seen.tolist()) | set(fingerprints(text.text for text in whole).tolist()) == set(
        line[2].seen.tolist()
    )
    assert np.array_equal(line[2].seen, np.unique(line[2].seen))  # sorted: it is searched by bisection
    assert len(line[1].seen) < len(line[2].seen)
    # A model of a release that kept only the last one's hash.
    old = dataclasses.replace(line[1].info, training={"start": start.info.hash})
    assert old.ancestors == (start.info.hash,)


def test_early_stopping(sample: Path, tiny: TrainingConfig) -> None:
    # A rate of almost nothing never improves on the first epoch.
    config = dataclasses.replace(tiny, epochs=9, rate=1e-12, table_rate=1e-12, patience=2)
    assert len(list(trainer(sample, config).run())) == 3


def test_a_whole_run_writes_a_model_that_describes_itself(sample: Path, tiny: TrainingConfig, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny, epochs=2)
    screen = Console(record=True, width=200, file=io.StringIO())
    info = train_model([sample], tmp_path / "m", config=config, dev_share=0.2, name="mine", console=screen)
    text = screen.export_text()
    assert "54 texts" in text
    assert "epoch 2: loss" in text
    assert "as stored" in text
    assert not (tmp_path / "m" / CHECKPOINT_FILE).exists()
    with safe_open(tmp_path / "m" / "model.safetensors", framework="np") as stream:
        header = json.loads(stream.metadata()["surespan"])
    assert header["classes"] == ["LOC", "MISC", "ORG", "PER"]
    assert header["languages"] == ["de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru"]
    assert header["training"]["files"][0]["name"] == "sample.conll"
    assert header["training"]["recipe"]["seed"] == 3
    assert info.name == "mine"


def test_no_entities_or_no_development_texts(tmp_path: Path, sample: Path, tiny: TrainingConfig) -> None:
    (tmp_path / "plain.txt").write_text("a O\nb O\n")
    quiet = Console(quiet=True)
    with pytest.raises(InvalidTraining, match="expected entities"):
        train_model([tmp_path / "plain.txt"], tmp_path / "m", config=tiny, console=quiet)
    with pytest.raises(InvalidTraining, match="expected development texts"):
        train_model([sample], tmp_path / "m", config=tiny, dev_share=0.0, console=quiet)
    with pytest.raises(InvalidTraining, match="epochs of at least 1"):
        dataclasses.replace(tiny, epochs=0)
    with pytest.raises(InvalidTraining, match=r"expected dropout in 0\.\.1"):
        dataclasses.replace(tiny, dropout=1.0)
    with pytest.raises(InvalidTraining, match="share upper"):
        Variation(upper=1.5)
    with pytest.raises(InvalidTraining, match="at most 1"):
        Variation(upper=0.5, lower=0.5, title=0.5)


def test_texts_whose_spans_cut_a_token_are_left_out_and_counted(tiny: TrainingConfig) -> None:
    texts = [
        LabelledText("Berlin ruft", (TextSpan(0, 3, "LOC"),)),
        LabelledText("Bern ruft", (TextSpan(0, 4, "LOC"),)),
        LabelledText("Bern ruft", (TextSpan(0, 4, "DATE"),)),
        LabelledText("  ", ()),
    ]
    corpus = build_corpus(texts, SPACE, features=tiny.features)
    assert len(corpus.samples) == 1
    assert corpus.inexpressible == {"it cuts a token": 1, "its class is not one of the model's": 1}
    with pytest.raises(InvalidTraining, match="at least one labelled text"):
        build_corpus(texts[:1], SPACE, features=tiny.features)


def test_features_of_chosen_words_equal_fresh_ones(sample: Path, tiny: TrainingConfig) -> None:
    corpus = build_corpus(read_conll(sample).texts, SPACE, features=tiny.features)
    rows = np.random.default_rng(5).permutation(len(corpus.words))[:40]
    taken = take_words(corpus.features, rows)
    fresh = hash_words([corpus.words[i] for i in rows], tiny.features)
    for ours, theirs in zip(taken, fresh, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_variations(sample: Path, tiny: TrainingConfig) -> None:
    corpus = build_corpus(read_conll(sample).texts, SPACE, features=tiny.features)
    rng = np.random.default_rng(1)

    def words(one: object) -> list[str]:
        return [corpus.words[i] for i in one.words]  # type: ignore[attr-defined]

    plain = Variation(upper=0.0, lower=0.0, title=0.0, clause=0.0, cut=0.0)
    assert vary(corpus, corpus.samples, shares=plain, rng=rng) == list(corpus.samples)
    for change in ("upper", "lower"):
        shares = dataclasses.replace(plain, **{change: 1.0})
        for varied, one in zip(vary(corpus, corpus.samples, shares=shares, rng=rng), corpus.samples, strict=True):
            assert words(varied) == [getattr(word, change)() for word in words(one)]
            np.testing.assert_array_equal(varied.labels, one.labels)
    for one in corpus.samples:
        clause = entity_free_clause(corpus, one, rng=rng)
        if clause is not None:
            assert not clause.labels.any()
            inner = [word.lower() for word in words(clause)][:-1]
            assert " ".join(inner) in " ".join(words(one)).lower()
        cut = without_entities(one)
        if cut is not None:
            assert words(cut) == [word for word, label in zip(words(one), one.labels, strict=True) if label == 0]
    more = vary(corpus, corpus.samples, shares=dataclasses.replace(plain, clause=1.0, cut=1.0), rng=rng)
    assert len(more) > 1.5 * len(corpus.samples)


def test_batches_hold_every_sample_once_within_the_budget(sample: Path, tiny: TrainingConfig) -> None:
    corpus = build_corpus(read_conll(sample).texts, SPACE, features=tiny.features)
    groups = list(batches(corpus.samples, budget=60, rng=np.random.default_rng(2)))
    assert sorted(id(s) for group in groups for s in group) == sorted(id(s) for s in corpus.samples)
    for group in groups:
        assert len(group) == 1 or len(group) * max(len(s.words) for s in group) <= 60
