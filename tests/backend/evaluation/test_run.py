"""`surespan evaluate` with a real (small) model: decoded once, equal when run again, figures as the library's."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from backend.cli import main
from backend.evaluation.actions import count_actions
from backend.evaluation.decoding import DETAILED, Decoded, decode_files
from backend.evaluation.paper_sets import PaperSets
from backend.evaluation.study import COMPARED, Study, run_method
from backend.tagger.loading import load_tagger
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.readers import read_labelled
from conformal.evaluation import Outcomes, edf_distance, summarise
from conformal.integrated import span_values
from conformal.labels import Span
from conformal.scores import Method
from conformal.trellis import kbest
from tests.support.paths import SAMPLE


@pytest.fixture(scope="module")
def tagger(tiny_model: Path) -> NetworkTagger:
    return load_tagger(tiny_model)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample, eight times over: more than the hundred that a threshold takes in each half."""
    path = tmp_path_factory.mktemp("data") / "sample.conll"
    path.write_text("\n".join([SAMPLE.read_text().rstrip("\n") + "\n"] * 8))
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def decoded(tagger: NetworkTagger, data: Path, cache: Path) -> Decoded:
    return decode_files(tagger, [data], cache=cache)


def test_decoded_texts_are_what_the_decoder_says(tagger: NetworkTagger, data: Path, decoded: Decoded) -> None:
    texts = read_labelled(data).texts
    assert len(decoded) == len(texts)
    space = tagger.space
    study = Study(decoded)
    tuned = study.tuned("integrated", "0.1").tuned
    assert tuned is not None
    worst = study.listed_worst(tuned)
    for task in range(0, len(texts), 25):
        p = tagger.potentials([texts[task].text])[0].potentials
        top = kbest(p, DETAILED)
        np.testing.assert_allclose(decoded["list.log_probability"][task, : top.count], top.log_probabilities, rtol=1e-5)
        values, _ = span_values(p, space, tuned=tuned, p_min=0.01, floor=0.0)
        np.testing.assert_allclose(worst[task, : top.count], values.worst(top.labels), atol=2e-2)
        assert decoded["labeling.count"][task, : top.count].tolist() == [len(space.spans(row)) for row in top.labels]
    own = decoded["task.rank"] == 1
    assert np.all(decoded["task.actions"][own, 1] == 0)
    assert np.all(decoded["task.actions"][:, 0] == decoded["task.entities"])


def test_a_file_is_decoded_once(tagger: NetworkTagger, data: Path, cache: Path, decoded: Decoded) -> None:
    files = list(cache.iterdir())
    told: list[tuple[str, int, int]] = []
    again = decode_files(tagger, [data, data], cache=cache, progress=lambda *args: told.append(args))
    assert list(cache.iterdir()) == files
    assert told == [(name, len(decoded), len(decoded)) for name in ("sample.conll", "sample.conll (2)")]
    assert again.sources == ("sample.conll", "sample.conll (2)")
    assert len(again) == 2 * len(decoded)
    np.testing.assert_array_equal(
        again["held.part"][len(decoded["held.part"]) :], decoded["held.part"] + len(decoded["part.task"])
    )
    files[0].write_bytes(b"damaged")
    np.testing.assert_array_equal(decode_files(tagger, [data], cache=cache)["task.rank"], decoded["task.rank"])


def test_sizes_by_bisection_are_those_of_the_whole_list(decoded: Decoded) -> None:
    study = Study(decoded)
    for name in ("nc1", "nc2", "raps+nc1", "naive+nc2", "conditional_paper+nc1", "joint+nc1"):
        for alpha, _, judged, made in run_method(study, name, splits=1, strata=False, alphas=("0.2",)):
            table, method = made.pool("all").table, made.method
            for at, task in list(enumerate(judged.test.tolist()))[::40]:
                count = int(study.counts[task])
                logs = study.logs[task, :count].astype(np.float64)
                ranks = type(study.rows.ranks)(logs, np.arange(1, count + 1), study.cumulative[task, :count])
                assert judged.outcomes.size[at] == int(table.contains(method.scores(ranks), alpha).sum())
            own = method.scores(study.rows.take(judged.test).ranks)
            np.testing.assert_array_equal(judged.outcomes.covered, table.contains(own, alpha))


def test_parts_of_a_study_do_not_overlap(decoded: Decoded) -> None:
    study = Study(decoded, seed=3)
    calibration, test = study.split(0)
    everything = np.concatenate([study.tuning, calibration, test])
    assert np.array_equal(np.sort(everything), study.kept)
    assert not np.array_equal(study.split(1)[0], calibration)
    assert np.array_equal(Study(decoded, seed=3).split(0)[0], calibration)


def test_the_papers_sets_keep_labelings_whose_every_entity_is_kept(decoded: Decoded) -> None:
    study = Study(decoded)
    paper = PaperSets(study)
    calibration, test = study.split(0)
    loose = paper.sets("int. nc1, Šidák", calibration, test, "0.05")
    tight = paper.sets("int. nc1, no Šidák", calibration, test, "0.05")
    both = paper.sets("int. nc1 and index", calibration, test, "0.05")
    assert np.all(tight <= loose)  # Šidák only widens
    assert both.sum() > 0
    no_entity = decoded["labeling.count"][test] == 0
    assert np.all(loose[no_entity])  # kept vacuously


@pytest.mark.heavy
def test_the_command_writes_everything_and_repeats_itself(data: Path, tiny_model: Path, tmp_path: Path) -> None:
    arguments = ["evaluate", "--model", str(tiny_model), "--data", str(data), "--splits", "1"]
    arguments += ["--out", str(tmp_path / "out"), "--json", str(tmp_path / "all.json")]
    first = CliRunner().invoke(main, arguments)
    assert first.exit_code == 0, first.output
    assert "recommended: " in first.stdout
    made = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"tables.md", "report.html", "methods-strata.csv", "laws.csv", "queue.csv", "set-sizes.svg"} <= made
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script" not in page
    assert 'src="' not in page
    assert "@import" not in page
    figures = json.loads((tmp_path / "all.json").read_text())
    assert figures["settings"]["texts"] == len(read_labelled(data).texts)
    assert len(figures["results"]["joint+nc1|strata"]) == 5
    below = list(csv.DictReader((tmp_path / "out" / "below-target.csv").read_text().splitlines()))
    records = [r for name in COMPARED for kind in ("strata", "no strata") for r in figures["results"][f"{name}|{kind}"]]
    laws = [law for r in records for law in [*r.get("laws", []), *r.get("group_laws", [])]]
    short = [law for law in laws if law["covered"] < (1 - float(law["alpha"])) * law["tasks"]]
    assert 0 < len(short) == sum(row["by"] != "class" for row in below)  # every law of every method
    counted = csv.DictReader((tmp_path / "out" / "below-target-counts.csv").read_text().splitlines())
    assert sum(int(row["below target"]) for row in counted) == len(below)
    kept = (tmp_path / "out" / "tables.md").read_bytes()
    pieces = sorted((tmp_path / "out" / "cache" / "pieces").iterdir())
    pieces[0].unlink()  # as if it had been stopped there
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 0, again.output
    assert (tmp_path / "out" / "tables.md").read_bytes() == kept
    assert json.loads((tmp_path / "all.json").read_text()) == figures
    assert (tmp_path / "out" / "report.html").read_text() == page


def test_actions_count_what_an_annotator_does() -> None:
    a, b, c = Span(0, 2, "PER"), Span(3, 4, "LOC"), Span(6, 9, "ORG")
    assert count_actions([a, b], [a, b]) == 0
    assert count_actions([], [a, b, c]) == 3
    assert count_actions([a, b], []) == 2
    assert count_actions([a], [Span(0, 2, "ORG")]) == 1
    assert count_actions([a], [Span(0, 3, "PER")]) == 1
    assert count_actions([a], [Span(1, 3, "LOC")]) == 2
    assert count_actions([Span(0, 5, "PER")], [Span(0, 2, "PER"), Span(3, 5, "PER")]) == 2


def test_summaries_by_hand() -> None:
    covered = np.array([True, True, True, False])
    sets = Outcomes(covered, np.array([1, 7, 300, 0]), np.array([False, False, True, False]), np.array([1, 6, 0, 0]))
    found = summarise(sets, target=0.9, groups=[0, 0, 1, 1], least=2)
    assert (found.coverage, found.mean, found.median) == (0.75, 3.0, 1.0)
    assert (found.mean_100, found.mean_1000) == (27.25, 252.25)
    assert (found.singletons, found.empty, found.open) == (0.5, 0.25, 0.25)
    assert found.worst_gap == pytest.approx(-0.4)
    assert found.worst_group == 1
    assert found.shown_coverage == 0.25
    assert found.by_size[:4] == (0.0, 1.0, pytest.approx(float("nan"), nan_ok=True), 1.0)
    rng = np.random.default_rng(0)
    assert edf_distance(rng.random(50), rng.random(50) + 2) == 1.0
    assert Method("joint+nc1").worth == "exact"
