"""The whole evaluation: every method, level and breakdown, one stored piece after the other.

Each piece (a method with or without strata) is written as JSON when it is done and is not worked out again, so a run
that was stopped goes on where it was. Equal inputs and seed give equal pieces.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from backend.evaluation.collect import class_tasks, figures_of, group_codes
from backend.evaluation.decoding import DETAILED, data_hash, decode_files
from backend.evaluation.effort import actions, flag_figures, queue_figures
from backend.evaluation.paper_sets import VARIANTS, run_paper
from backend.evaluation.span_sets import run_spans
from backend.evaluation.study import COMPARED, LEVELS, Study, run_method
from backend.tagger.errors import InvalidData
from backend.tagger.tagger import Tagger
from conformal.evaluation import edf_distance
from conformal.scores import SPAN_METHODS, Boundary
from conformal.subsequence import EntityMethod

VERSION = 3  # of the pieces: raise it when figures change, so that older ones are not read
# Methods that are judged under the paper's convention too: probabilities over the 100 best labelings.
TOP_K = ("nc1", "nc2", "nc3", "raps+nc1", "raps+nc2", "naive+nc1", "conditional_paper+nc1")
_KS_DRAWS, _KS_REPEATS = 100, 100

Results = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is to be done; part of every stored piece's name."""

    splits: int = 20
    alphas: tuple[str, ...] = LEVELS
    seed: int = 0


def prepare(
    tagger: Tagger,
    files: Sequence[Path],
    *,
    cache: Path,
    rows: int | None = None,
    seed: int = 0,
    merge: str | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Study, str]:
    """Decode labelled files, or read them from the cache; return the study and a key that names model and data."""
    decoded = decode_files(tagger, files, cache=cache, rows=rows, seed=seed, merge=merge, progress=progress)
    parts = [tagger.hash, *tagger.space.classes, *(data_hash(path) for path in files), str(rows), str(seed)]
    parts += decoded.sources
    study = Study(decoded, seed)
    if study.rest.size < 2:
        raise InvalidData(
            "expected at least two labelled texts that are not empty and that the model was not trained on, got "
            f"{study.kept.size} of {len(decoded)}; give data that were kept apart when the model was trained"
        )
    return study, hashlib.sha256("|".join(parts).encode()).hexdigest()


def evaluate(
    study: Study,
    plan: Plan,
    *,
    store: Path,
    key: str,
    jobs: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Results:
    """Return the figures of everything; `key` names model and data, `store` is where finished pieces are kept.

    With `jobs` above 1 pieces are worked out by that many processes, forked, so that they share the decoded texts.
    """
    store.mkdir(parents=True, exist_ok=True)
    pieces = _pieces(study, plan)
    paths = {name: _path(store, f"{key}|{VERSION}|{asdict(plan)}|{name}") for name in pieces}
    missing = [name for name in pieces if not paths[name].exists()]
    done = len(pieces) - len(missing)

    def tell(name: str) -> None:
        if progress is not None:
            progress(name, done, len(pieces))

    if jobs > 1 and len(missing) > 1:
        _share(study)
        context = get_context("fork")  # the texts are shared, not sent; nothing here starts threads
        with context.Pool(jobs, initializer=_inherit, initargs=(study, plan)) as pool:
            for name in pool.imap_unordered(_work, [(name, paths[name]) for name in missing]):
                done += 1
                tell(name)
    else:
        for name in missing:
            tell(name)
            _save(paths[name], pieces[name]())
            done += 1
    tell("done")
    results = {name: json.loads(path.read_text()) for name, path in paths.items()}
    spans = [name for name in results if name.startswith("spans|")]
    return results | {"spans": [record for name in spans for record in results.pop(name)]}


def _pieces(study: Study, plan: Plan) -> dict[str, Callable[[], Any]]:
    pieces: dict[str, Callable[[], Any]] = {
        f"{name}|{'strata' if strata else 'no strata'}": partial(_method, study, plan, name, strata)
        for name in COMPARED
        for strata in (True, False)
    }
    pieces |= {f"{name}|top {DETAILED}": partial(_method, study, plan, name, False, DETAILED) for name in TOP_K}
    pieces |= {name: partial(_paper, study, plan, name) for name in VARIANTS}
    pieces |= {f"spans|{method}": partial(_spans, study, plan, method) for method in _SPANS}
    pieces["boundary"] = partial(_boundary, study, plan)
    pieces["effort"] = partial(_effort, study)
    pieces["ks"] = partial(_ks, study)
    return pieces


_SPANS = {name: EntityMethod(name) for name in SPAN_METHODS} | {"nc1, pooled": EntityMethod("nc1", "pooled")}
_inherited: dict[str, Callable[[], Any]] = {}


def _share(study: Study) -> None:
    """Work out before forking what every piece needs, so that it is there once."""
    for each in (study.rows, study.entities, study.cumulative, study.counts, study.cell_codes, study.rest):
        len(each)


def _inherit(study: Study, plan: Plan) -> None:
    _inherited.update(_pieces(study, plan))


def _work(item: tuple[str, Path]) -> str:
    name, path = item
    if not path.exists():  # another run may have made it meanwhile
        _save(path, _inherited[name]())
    return name


def _path(store: Path, key: str) -> Path:
    return store / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"


def _save(path: Path, figures: Any) -> None:  # noqa: ANN401 - JSON
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(figures))
    unfinished.replace(path)  # whole, or not at all


def _method(study: Study, plan: Plan, name: str, strata: bool, top_k: int | None = None) -> list[dict[str, Any]]:
    groups, classes = group_codes(study), class_tasks(study)
    records: list[dict[str, Any]] = []
    for alpha, split, judged, thresholds in run_method(
        study, name, splits=plan.splits, strata=strata, alphas=plan.alphas, top_k=top_k
    ):
        figures = figures_of(
            study,
            judged,
            alpha=alpha,
            split=split,
            groups=groups,
            classes=classes,
            thresholds=thresholds if split == 0 else None,
            strata=strata,
        )
        tuned = thresholds.method.tuned
        if tuned is not None:
            figures["tuned"] = {
                "limit": thresholds.method.limit,
                "lam": tuned.lam,
                "r0": tuned.r0,
                "share": tuned.share,
            }
        if split == 0 and alpha == "0.05":
            beyond = np.where(judged.outcomes.open, 101, np.minimum(judged.outcomes.size, 101))
            top = np.bincount(beyond, minlength=102)
            figures["sizes"] = top.tolist()
        records.append(figures)
    return records


def _paper(study: Study, plan: Plan, name: str) -> list[dict[str, Any]]:
    groups, classes = group_codes(study), class_tasks(study)
    return [
        figures_of(study, judged, alpha=alpha, split=split, groups=groups, classes=classes)
        for _, alpha, split, judged in run_paper(study, splits=plan.splits, alphas=plan.alphas, names=(name,))
    ]


def _spans(study: Study, plan: Plan, method: str) -> list[dict[str, Any]]:
    methods = [_SPANS[method]]
    return [asdict(each) for each in run_spans(study, splits=plan.splits, alphas=plan.alphas, methods=methods)]


def _boundary(study: Study, plan: Plan) -> list[dict[str, Any]]:
    """Ablate the boundary rule at 0.90, without strata."""
    records: list[dict[str, Any]] = []
    groups, classes = group_codes(study), class_tasks(study)
    for name in ("nc1", "nc2", "nc3"):
        for rule in Boundary:
            for alpha, split, judged, _ in run_method(
                study, name, splits=min(plan.splits, 5), strata=False, alphas=("0.1",), boundary=rule
            ):
                figures = figures_of(study, judged, alpha=alpha, split=split, groups=groups, classes=classes)
                records.append(
                    {
                        "score": name,
                        "rule": rule.value,
                        **{k: figures[k] for k in ("coverage", "mean_100", "mean_1000", "empty")},
                    }
                )
    return records


def _effort(study: Study) -> dict[str, Any]:
    figures: dict[str, Any] = {"actions": {}, "flags": {}}
    for alpha in ("0.1", "0.05", "0.01"):
        for _, _, judged, _ in run_method(study, "nc1", splits=1, strata=True, alphas=(alpha,)):
            figures["actions"][alpha] = actions(study, judged)
            figures["flags"][alpha] = flag_figures(study, alpha=alpha)
            if alpha == "0.05":
                figures["queue"] = queue_figures(study, judged)
    return figures


def _ks(study: Study) -> dict[str, Any]:
    """Return the mean KS distance of nc1 between length bins, of 100 draws each, 100 times, in the largest language."""
    groups = group_codes(study)
    names, bins = groups["length"]
    languages, codes = groups["language"]
    largest = int(np.bincount(codes[study.kept]).argmax()) if "en" not in languages else languages.index("en")
    rng = np.random.default_rng([study.seed, 5])
    scores = -study.decoded["task.log_probability"]
    finite = np.where(np.isfinite(scores), scores, 1e9)
    kept = np.zeros(finite.size, np.bool_)
    kept[study.kept] = True
    pools = [finite[kept & (codes == largest) & (bins == b)] for b in range(len(names))]
    table = np.full((len(names), len(names)), np.nan)
    for i, first in enumerate(pools):
        for j, second in enumerate(pools):
            if min(first.size, second.size) >= _KS_DRAWS:
                table[i, j] = np.mean(
                    [
                        edf_distance(rng.choice(first, _KS_DRAWS), rng.choice(second, _KS_DRAWS))
                        for _ in range(_KS_REPEATS)
                    ]
                )
    return {"language": languages[largest], "lengths": list(names), "distance": table.tolist()}
