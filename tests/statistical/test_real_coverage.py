"""Coverage on real sentences with the bundled model: what no strata miss, and what strata repair (METHODS 5).

Needs the WikiNEuRal test files beside the project; skipped without them. `make soak` runs it on every sentence and
prints the tables kept in docs/results/coverage-wikineural.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.prediction.make_starter import rows_of
from backend.prediction.scoring import ScoredText, score_labelled
from backend.tagger.loading import load_tagger
from backend.tagger.readers import read_labelled
from backend.tagger.whole import WholeTexts
from conformal.metrics import Coverage, split_coverage, split_entity_coverage
from conformal.monitor.coverage import below_target
from conformal.rows import EntityRows, TaskRows
from conformal.strata import Strata
from tests.support.data import benchmark_data

LEVELS = ("0.1", "0.05")
LANGUAGES = ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru")


@dataclass(frozen=True)
class Study:
    tasks: TaskRows
    entities: EntityRows
    classes: tuple[str, ...]
    languages: list[str]  # identified, as strata have them
    lengths: list[str]
    counts: list[str]  # number of true entities


def score_files(per_file: int | None) -> Study:
    data = benchmark_data()
    if data is None:
        pytest.skip("the WikiNEuRal files are not beside the project")
    torch.set_num_threads(1)
    tagger = WholeTexts(load_tagger())  # one row per sentence of the file, as the laws here count them
    rng = np.random.default_rng(11)
    scored: list[ScoredText] = []
    entities: list[int] = []
    for language in LANGUAGES:
        texts = read_labelled(Path(data) / "wikineural" / f"{language}.test.conllu.gz").texts
        chosen = np.sort(rng.permutation(len(texts))[:per_file]).tolist()
        scored += score_labelled(tagger, [texts[i] for i in chosen])
        entities += [len(texts[i].spans) for i in chosen]
    tasks, rows = rows_of(scored)
    strata = Strata()
    return Study(
        tasks,
        rows,
        tagger.space.classes,
        [item.language for item in scored],
        [strata.length_bins[sum(item.length > end for end in strata.lengths)] for item in scored],
        [f"{count} entities" if count < 5 else "5+ entities" for count in entities],
    )


@pytest.fixture(scope="module")
def sample() -> Study:
    return score_files(500)


def coverage(study: Study, groups: list[str], strata: Strata | None, *, splits: int = 20) -> Coverage:
    rng = np.random.default_rng(5)
    return split_coverage(study.tasks, alphas=LEVELS, rng=rng, strata=strata, groups=groups, splits=splits)


def test_coverage_in_total_follows_its_law(sample: Study) -> None:
    found = coverage(sample, ["all"] * len(sample.tasks), None, splits=1)
    below = found.below(0)
    assert below.min() > 1e-3  # the lower side of the beta-binomial law of one split
    for a, alpha in enumerate(LEVELS):
        covered, total, n = int(found.covered[0, a, 0]), int(found.total[0, 0]), int(found.n[0, 0])
        # ... and the upper side: were this many covered by more than chance, the sets would be too large.
        assert below_target(total - covered, total, n=n, alpha=str(1 - float(alpha))) > 1e-3


def test_cells_that_stand_alone_are_covered(sample: Study) -> None:
    found = coverage(sample, list(sample.tasks.cells), Strata(), splits=1)
    judged = found.below(0)[~np.isnan(found.below(0))]
    assert judged.size >= 2 * 9  # most languages have a length bin with a hundred calibration rows
    assert judged.min() > 1e-2 / judged.size  # family-wise 1 %


def test_without_strata_languages_differ_more_than_with(sample: Study) -> None:
    plain = coverage(sample, sample.languages, None).mean[1]
    stratified = coverage(sample, sample.languages, Strata()).mean[1]
    known = [i for i, name in enumerate(sorted(set(sample.languages))) if name in LANGUAGES]
    assert np.ptp(plain[known]) > 1.5 * np.ptp(stratified[known])


def print_table(title: str, study: Study, groups: list[str]) -> None:
    plain, stratified = coverage(study, groups, None), coverage(study, groups, Strata())
    print(f"\n{title}\n\n| group | rows | no strata 0.90 | 0.95 | with strata 0.90 | 0.95 |\n|---|---|---|---|---|---|")
    for g, name in enumerate(plain.groups):
        cells = [
            f"{found.mean[a, g]:.3f} ± {found.spread[a, g]:.3f}" for found in (plain, stratified) for a in range(2)
        ]
        print(f"| {name} | {groups.count(name):,} | {' | '.join(cells)} |")


@pytest.mark.slow
def test_every_sentence_of_nine_languages(capsys: pytest.CaptureFixture[str]) -> None:
    study = score_files(int(os.environ["SURESPAN_STUDY_ROWS"]) if "SURESPAN_STUDY_ROWS" in os.environ else None)
    with capsys.disabled():
        lost = float(np.isneginf(study.tasks.ranks.log_probability).mean())
        print(f"\n{len(study.tasks):,} sentences, {lost:.2%} with a label the model cannot express")
        for title, groups in (
            ("In total", ["all"] * len(study.tasks)),
            ("By identified language", study.languages),
            ("By length in words", study.lengths),
            ("By number of true entities (no strata: not promised)", study.counts),
        ):
            print_table(title, study, groups)
        entity = split_entity_coverage(
            study.entities,
            tasks=len(study.tasks),
            classes=study.classes,
            alphas=LEVELS,
            rng=np.random.default_rng(5),
        )
        print("\nSpan sets by class, over tasks\n\n| class | 0.90 | 0.95 |\n|---|---|---|")
        for w, name in enumerate(entity.labels):
            print(f"| {name} | " + " | ".join(f"{entity.by_task[:, a, w].mean():.3f}" for a in range(2)) + " |")
    found = coverage(study, list(study.tasks.cells), Strata(), splits=1)
    judged = found.below(0)[~np.isnan(found.below(0))]
    assert judged.min() > 1e-2 / judged.size
    np.testing.assert_allclose(entity.by_task.mean(axis=0), [[0.9] * 5, [0.95] * 5], atol=0.01)
