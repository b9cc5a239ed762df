"""Text to sets with a real (small) model: what is promised, what is listed, and what `surespan predict` prints."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.domain.guarantee import Guarantee
from backend.errors import InvalidSetting, InvalidStarter
from backend.prediction.answer import answer_of
from backend.prediction.calibration import Calibration
from backend.prediction.make_starter import make_starter
from backend.prediction.predictor import Predictor
from backend.prediction.promise import describe_promise
from backend.prediction.starter import load_starter, save_starter, starter_calibration, starter_name
from backend.settings import load_settings
from backend.tagger.folded import restrict
from backend.tagger.loading import load_tagger
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import read_labelled
from conformal import kbest
from conformal.scores import METHODS, SPAN_METHODS, Boundary, Method, split_name
from conformal.thresholds import calibrate
from tests.support.paths import SAMPLE

TEXT = "Anna Schmidt wohnt in Berlin 🎉."


@pytest.fixture(scope="module")
def calibrated(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the small model with a starter calibration beside it."""
    copied = shutil.copytree(tiny_model, tmp_path_factory.mktemp("calibrated") / "model")
    starter = make_starter(
        load_tagger(copied), [SAMPLE] * 4, per_file=10_000, seed=0, about="the test sample, four times"
    )
    save_starter(starter, copied)
    return copied


@pytest.fixture(scope="module")
def tagger(calibrated: Path) -> NetworkTagger:
    return load_tagger(calibrated)


@pytest.fixture(scope="module")
def calibration(tagger: NetworkTagger, calibrated: Path) -> Calibration:
    return starter_calibration(tagger, calibrated, n_min=20)


def test_the_starter_survives_the_round_trip(calibrated: Path, tagger: NetworkTagger) -> None:
    made = make_starter(tagger, [SAMPLE] * 4, per_file=10_000, seed=0, about="again")
    read = load_starter(calibrated / starter_name(tagger.space.classes))
    assert read.model_hash == tagger.hash
    assert read.tasks.cells == made.tasks.cells
    np.testing.assert_array_equal(read.tasks.ranks.log_probability, made.tasks.ranks.log_probability)
    np.testing.assert_array_equal(read.entities.scored.cumulative, made.entities.scored.cumulative)
    assert read.entities.labels == made.entities.labels
    # The sample's every sentence is a row, whether or not the model gets it right.
    assert len(read.tasks) == 4 * len(read_labelled(SAMPLE).texts)


def test_the_starter_is_borrowed_and_belongs_to_its_weights(calibrated: Path, tagger: NetworkTagger) -> None:
    assert starter_calibration(tagger, calibrated, n_min=20).guarantee is Guarantee.BORROWED
    starter = load_starter(calibrated / starter_name(tagger.space.classes))
    other = calibrated.parent / "other-weights"
    other.mkdir(exist_ok=True)
    save_starter(replace(starter, model_hash="0" * 64), other)
    assert starter_calibration(tagger, other, n_min=20).guarantee is Guarantee.NONE
    assert starter_calibration(tagger, other.parent / "nothing-here", n_min=20).guarantee is Guarantee.NONE


def test_a_damaged_starter_is_named(tmp_path: Path, tagger: NetworkTagger) -> None:
    (tmp_path / starter_name(tagger.space.classes)).write_bytes(b"not a starter")
    with pytest.raises(InvalidStarter, match=r"readable starter calibration in starter\."):
        starter_calibration(tagger, tmp_path)


def test_a_set_lists_exactly_the_labelings_above_its_threshold(tagger: NetworkTagger, calibration: Calibration) -> None:
    predictor = Predictor(tagger, calibration, alpha="0.1", max_shown=1000)
    texts = [text.text for text in read_labelled(SAMPLE).texts]
    open_sets = 0
    for made, tagged in zip(predictor.predict(texts), tagger.potentials(texts), strict=True):
        sets = made.sets
        if sets.open:
            open_sets += 1
            continue
        assert sets.set_size is not None
        inside = kbest(tagged.potentials, 10_000, above=-sets.threshold)
        assert sets.set_size == inside.count
        assert len(sets.labelings) == max(1, min(1000, inside.count))
        assert [labeling.rank for labeling in sets.labelings] == list(range(1, len(sets.labelings) + 1))
        assert all(labeling.p_value > 0.1 for labeling in sets.labelings if labeling.member)
    assert open_sets < len(texts)


def test_offsets_slice_the_untouched_text(tagger: NetworkTagger, calibration: Calibration) -> None:
    made = Predictor(tagger, calibration).predict([TEXT])[0].as_dict()
    spans = [span for labeling in made["labelings"] for span in labeling["spans"]] + made["spans"]
    assert spans
    for span in spans:
        assert span["text"] == TEXT[span["start"] : span["end"]]


def test_the_dictionary_has_the_documented_keys(tagger: NetworkTagger, calibration: Calibration) -> None:
    made = Predictor(tagger, calibration).predict([TEXT, ""])
    for prediction in made:
        answer = prediction.as_dict()
        assert list(answer) == [
            "text", "language", "stratum", "pool", "alpha", "n", "guarantee", "threshold_version", "model_version",
            "open", "set_size", "labelings", "units", "out_of_reach", "flags", "places", "spans",
        ]  # fmt: skip
        json.loads(json.dumps(answer, allow_nan=False))
    assert made[0].model_version == f"tiny@{tagger.hash[:8]}+cal.0"
    empty = made[1].as_dict()
    assert empty["stratum"] == "empty"
    assert empty["labelings"] == [{"rank": 1, "probability": 1.0, "p_value": 1.0, "spans": []}]


def test_without_labels_the_set_is_open_and_says_so(tagger: NetworkTagger, tmp_path: Path) -> None:
    made = Predictor(tagger, starter_calibration(tagger, tmp_path)).predict([TEXT])[0]
    assert made.guarantee is Guarantee.NONE
    assert made.sets.open
    assert made.sets.set_size is None
    assert len(made.sets.labelings) == 5
    assert math.isinf(made.sets.threshold)
    assert describe_promise(made).startswith("No promise: only 0 calibration labels")


def test_a_pool_with_too_few_labels_promises_nothing(tagger: NetworkTagger, calibrated: Path) -> None:
    calibration = starter_calibration(tagger, calibrated, n_min=1_000_000)
    made = Predictor(tagger, calibration).predict([TEXT])[0]
    assert made.guarantee is Guarantee.NONE
    assert made.sets.open


def test_a_text_the_model_was_trained_on_is_a_stratum_of_its_own(
    tagger: NetworkTagger, calibration: Calibration
) -> None:
    new = read_labelled(SAMPLE).texts[0].text
    fresh, trained_on = Predictor(tagger, calibration).predict([new, new + " -"])
    assert fresh.sets.stratum != "seen"
    assert trained_on.sets.stratum == "seen"
    assert trained_on.guarantee is Guarantee.NONE  # nothing that is new can speak for it


def test_folded_classes_become_no_entity_before_decoding(tagger: NetworkTagger, calibrated: Path) -> None:
    folded = restrict(tagger, ["LOC", "PER", "unknown"])
    assert folded.space.classes == tuple(name for name in tagger.space.classes if name in {"LOC", "PER"})
    assert restrict(tagger, [*tagger.space.classes, "more"]) is tagger
    [whole], [less] = tagger.potentials([TEXT]), folded.potentials([TEXT])
    np.testing.assert_allclose(  # no probability is lost at any token
        np.logaddexp.reduce(less.potentials.emissions, axis=1), np.logaddexp.reduce(whole.potentials.emissions, axis=1)
    )
    # Starter scores of the whole label space say nothing about the smaller one.
    assert starter_calibration(folded, calibrated, n_min=20).guarantee is Guarantee.NONE
    made = make_starter(folded, [SAMPLE] * 4, per_file=10_000, seed=0, about="")
    assert set(made.entities.labels) <= {"LOC", "PER", "O"}
    save_starter(made, calibrated)
    calibration = starter_calibration(folded, calibrated, n_min=20)
    assert calibration.guarantee is Guarantee.BORROWED
    sets = Predictor(folded, calibration, alpha="0.3", max_shown=50).predict([TEXT])[0].sets
    assert len({labeling.spans for labeling in sets.labelings}) == len(sets.labelings)


@pytest.mark.parametrize("name", [*METHODS, *(f"nc1/{name}" for name in SPAN_METHODS)])
def test_every_method_serves_and_only_exact_ones_promise(tagger: NetworkTagger, calibrated: Path, name: str) -> None:
    method = Method(load_settings(method=name).method)
    borrowed = starter_calibration(tagger, calibrated, method=method, n_min=20)
    calibration = Calibration(borrowed.thresholds, Guarantee.OWN, 7)
    assert calibration.thresholds.entity_method.name == method.span_name
    made = Predictor(tagger, calibration, alpha="0.2", max_shown=100).predict([TEXT, "Anna Schmidt wohnt in Berlin."])
    for each in made:
        assert each.sets.labelings
        members = sum(labeling.member for labeling in each.sets.labelings)
        assert each.sets.set_size in (None, members) or members >= 99
        assert (each.guarantee is Guarantee.OWN) == (method.worth == "exact")
        assert answer_of(each).value >= -each.sets.labelings[0].log_probability
        if method.worth == "exact":
            assert "In at least 80 %" in describe_promise(each)
        else:
            assert f"No promise: the sets of this method are {method.worth}" in describe_promise(each)


@pytest.mark.parametrize("name", METHODS)
def test_no_name_of_a_method_asks_for_a_randomised_boundary(name: str) -> None:
    # Sets of the product depend on the text alone: nothing in it draws for a task.
    for spans in ("", f"/{split_name(name)[1]}", *(f"/{each}" for each in SPAN_METHODS if name == "nc1")):
        method = Method(load_settings(method=name + spans).method)
        assert method.boundary is Boundary.INCLUDE
        assert not method.needs_u


@pytest.mark.parametrize("name", ["nc1:smoothed", "nc1 smoothed", "smoothed", "nc1/smoothed", "nc1+smoothed"])
def test_a_randomised_boundary_is_refused_with_the_known_names(name: str) -> None:
    with pytest.raises(InvalidSetting, match=r"METHOD: expected a (span )?method .*nc1, nc2, nc3"):
        load_settings(method=name)


def test_the_starter_serves_without_a_draw_for_its_rows(tagger: NetworkTagger, calibrated: Path) -> None:
    starter = load_starter(calibrated / starter_name(tagger.space.classes))
    drawn = replace(starter.tasks, u=np.linspace(0.0, 0.999, len(starter.tasks)))
    for name in ("nc1", "nc2", "nc3", "raps+nc2", "conditional+nc2", "integrated"):
        method = Method(name)
        made = starter_calibration(tagger, calibrated, method=method, n_min=20)
        other = calibrate(drawn, starter.entities, classes=starter.classes, method=method, n_min=20)
        assert made.thresholds.to_bytes() == other.to_bytes()


@pytest.mark.parametrize(
    ("guarantee", "words"),
    [
        (Guarantee.OWN, "In at least 95 % of tasks like this one"),
        (Guarantee.ASSISTED, "made with a prelabel in view"),
        (Guarantee.BORROWED, "No promise: thresholds are borrowed"),
    ],
)
def test_the_promise_fits_the_evidence(
    tagger: NetworkTagger, calibration: Calibration, guarantee: Guarantee, words: str
) -> None:
    predictor = Predictor(tagger, Calibration(calibration.thresholds, guarantee, 7))
    made = predictor.predict([TEXT])[0]
    assert words in describe_promise(made)
    assert made.as_dict()["threshold_version"] == 7


class TestCommand:
    def run(self, calibrated: Path, *arguments: str, text: str | None = None) -> tuple[int, str]:
        environment = {"SURESPAN_MODEL": str(calibrated), "SURESPAN_N_MIN": "20"}
        done = CliRunner().invoke(main, ["predict", *arguments], input=text, env=environment)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done.exit_code, done.output

    def test_json(self, calibrated: Path) -> None:
        code, output = self.run(calibrated, TEXT, "--json", "--alpha", "0.1")
        assert code == 0
        answer = json.loads(output)
        assert answer["text"] == TEXT
        assert answer["alpha"] == "0.1"
        assert answer["guarantee"] == "borrowed"

    def test_readable(self, calibrated: Path) -> None:
        code, output = self.run(calibrated, TEXT)
        assert code == 0
        assert TEXT in output
        assert "Labelings" in output
        assert "No promise" in output

    def test_lines_of_both_kinds(self, calibrated: Path, tmp_path: Path) -> None:
        path = tmp_path / "tasks.jsonl"
        lines = [{"text": "Roma è bella."}, {"id": 8, "data": {"text": "Paris", "language": "fr"}}]
        path.write_text("\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
        code, output = self.run(calibrated, "--input", str(path), "--json")
        assert code == 0
        answers = [json.loads(line) for line in output.splitlines()]
        assert [answer["text"] for answer in answers] == ["Roma è bella.", "Paris"]
        assert answers[1]["language"] == "fr"

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("{", "expected a JSON object"),
            ("[" * 100_000, "expected a JSON object"),
            ("[1]", "got list"),
            ('{"data": 3}', "under 'data', got int"),
            ('{"data": {}}', "got no such key"),
            ('{"text": 3}', "got int"),
        ],
    )
    def test_bad_lines_are_named(self, calibrated: Path, line: str, message: str) -> None:
        code, output = self.run(calibrated, "--input", "-", text=f'{{"text": "ok"}}\n{line}\n')
        assert code == 1
        assert ":2:" in output
        assert message in output

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ([], "got neither"),
            (["a", "--input", "-"], "got both"),
            (["a", "--alpha", "1.5"], "SURESPAN_ALPHA"),
            (["a", "--model", "/nowhere"], "expected"),
            (["a", "--max-shown", "0"], "max-shown"),
        ],
    )
    def test_bad_calls_are_explained(self, calibrated: Path, arguments: list[str], message: str) -> None:
        code, output = self.run(calibrated, *arguments)
        assert code != 0
        assert message in output
        assert "Traceback" not in output
