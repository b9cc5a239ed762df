"""Second looks: confirmed labels that are probably wrong, with the expected share of false alarms kept below a level.

Each confirmed label is scored once by its least plausible word (`conformal.discoveries`). A random part of the labels
of randomly drawn tasks is the *reference*; all others are tested against it. Two lists come of it. Labels that are
**listed** are discoveries: of these an expected share of at most `fdr` is right. Labels to **check** are the strangest
of the reference: as long as nobody has checked those, errors among them make the first list shorter than it could be.
"""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy.orm import Session

from backend.calibration.score_labels import class_names
from backend.domain.priority import review_value
from backend.domain.ranked import Candidate, RankedList, one_unit
from backend.domain.records import JobRecord, ModelRecord, ProjectRecord, TextSpan
from backend.jobs.context import WorkContext
from backend.logs import stack_of
from backend.store import Store
from backend.store.engine import database_now
from backend.store.labels import labels_of
from backend.store.projects import load_tasks
from backend.store.second_looks import (
    FDR,
    LookTable,
    ScoredLook,
    count_looks,
    load_looks,
    mark_looks,
    record_looks,
    unjudged_tasks,
)
from backend.store.state import SECOND_LOOKS, get_state, set_state
from backend.tagger.blank import BLANK_REASON, BlankTagger
from backend.tagger.readers import LabelledText
from backend.tagger.spans import to_token_spans
from backend.tagger.tagger import Tagged, Tagger
from conformal.discoveries import discover, reference_p_values, weakest_label, worth_checking
from conformal.labels import LabelSpace, Span
from conformal.subsequence import Candidates, candidate_spans, listing_floor
from conformal.trellis import KBest, entity_marginals, kbest

_log = logging.getLogger(__name__)

SHARE = 0.3  # of the randomly drawn labels that are the reference, while that is at most
MOST = 5000  # labels: enough for small p-values, few enough for people to check the strangest of them
GROUPS, GROUP = 4, 100  # tasks that were picked are compared within this many groups of so many reference labels
CHECKS = 25  # reference labels that are asked about at a time
HALF = math.log(2.0)  # a word whose label has a probability above one half is not strange
P_MIN = 0.01
_PAGE = 200


@dataclass(frozen=True)
class Found:
    """Positions in a `LookTable`: the reference, what was tested, what is listed (with p-values), what to check."""

    reference: np.ndarray[Any, np.dtype[np.int64]]
    tested: np.ndarray[Any, np.dtype[np.int64]]
    picked: np.ndarray[Any, np.dtype[np.int64]]
    listed: Mapping[int, float]
    check: tuple[int, ...]


def random_order_of(project: str, task: str) -> float:
    """Return where a task stands in a random order, in [0, 1): a hash of its name, which says nothing about its text.

    >>> 0.0 <= random_order_of("7.1", "12") < 1.0, random_order_of("7.1", "12") == random_order_of("7.1", "12")
    (True, True)
    """
    digest = hashlib.blake2b(f"{project}\x00{task}\x00second look".encode("utf-8", "surrogatepass"), digest_size=8)
    return (int.from_bytes(digest.digest(), "big") >> 11) / 2.0**53


def find_looks(table: LookTable, *, fdr: str = FDR) -> Found:
    """Return the two lists. Pure: the same labels give the same lists.

    The reference are the randomly drawn labels that come first in the random order: `SHARE` of them, `MOST` at most,
    decided by counts and the draw alone. Other randomly drawn labels are tested together. Labels of tasks that were
    picked, for instance because the model was in doubt, are tested apart, each against reference labels of texts about
    as doubtful: approximate, and only once there are enough of those. Labels that were looked at again are neither
    tested nor listed again.
    """
    drawn = np.flatnonzero(table.drawn)
    size = min(MOST, int(SHARE * drawn.size))
    order = drawn[np.lexsort((table.id[drawn], table.order[drawn]))]
    reference, rest = np.sort(order[:size]), np.sort(order[size:])
    tested = rest[~table.settled[rest]]
    picked = np.flatnonzero(~table.drawn & ~table.settled)
    listed: dict[int, float] = {}
    if size:
        listed |= _discoveries(table, reference, tested, fdr)
    groups = min(GROUPS, size // GROUP)
    if groups == GROUPS and picked.size:
        listed |= _discoveries(table, reference, picked, fdr, groups=groups)
    else:
        picked = picked[:0]
    strange = worth_checking(table.score[reference], table.trusted[reference], table.score[tested], fdr)
    check = [int(reference[i]) for i in strange.tolist() if table.score[reference[i]] > HALF]
    return Found(reference, tested, picked, listed, tuple(check[:CHECKS]))


def _discoveries(
    table: LookTable,
    reference: np.ndarray[Any, np.dtype[np.int64]],
    tested: np.ndarray[Any, np.dtype[np.int64]],
    fdr: str,
    *,
    groups: int = 1,
) -> dict[int, float]:
    edges = np.quantile(table.doubt[reference], np.linspace(0.0, 1.0, groups + 1)[1:-1])
    p_values = reference_p_values(
        table.score[tested],
        table.score[reference],
        groups=np.searchsorted(edges, table.doubt[tested], side="right"),
        reference_groups=np.searchsorted(edges, table.doubt[reference], side="right"),
    )
    discovered = discover(p_values, fdr) & (table.score[tested] > HALF)
    values = p_values.values
    return {int(tested[i]): float(values[i]) for i in np.flatnonzero(discovered).tolist()}


def refresh_looks(
    store: Store,
    project: ProjectRecord,
    *,
    model: ModelRecord,
    tagger: Tagger,
    fdr: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Score labels that were not scored as they are now, and make the lists again; returns what is kept about them.

    Args:
        tagger: over the classes of the project's label config.
        fdr: kept for the project from now on; None uses what was kept, 0.1 at first.
    """
    after = 0
    while True:
        with store.read() as session:
            tasks = unjudged_tasks(session, project.id, model_id=model.id, after=after, limit=_PAGE)
            if not tasks:
                break
            looks = _score_tasks(session, project, tagger, tasks)
        after = tasks[-1]
        store.run(lambda session, looks=looks: record_looks(session, project.id, model_id=model.id, looks=looks))  # type: ignore[misc]
        if progress is not None:
            progress(len(tasks))
    return make_lists(store, project.id, model_id=model.id, fdr=fdr)


def make_lists(store: Store, project_id: int, *, model_id: int, fdr: str | None = None) -> dict[str, Any]:
    """Make the lists of a project from the labels that were scored, and keep their figures.

    Labels are read in one transaction and marked in another, which is short. A label that changes between the two is
    not shown: entries of another revision than the label's are left out.
    """
    with store.read() as session:
        level = fdr or str((get_state(session, project_id, SECOND_LOOKS) or {}).get("fdr", FDR))
        table = load_looks(session, project_id, model_id=model_id)
        scored, lost = count_looks(session, project_id, model_id=model_id)
    lists = find_looks(table, fdr=level)
    ids = table.id.tolist()
    known = {
        "fdr": level,
        "model": model_id,
        "scored": scored,
        "inexpressible": lost,
        "reference": int(lists.reference.size),
        "checked": int(table.trusted[lists.reference].sum()),
        "tested": int(lists.tested.size),
        "picked": int(lists.picked.size),
        "listed": len(lists.listed),
        "check": len(lists.check),
    }

    def keep(session: Session) -> dict[str, Any]:
        listed = {ids[at]: p for at, p in lists.listed.items()}
        mark_looks(session, project_id, model_id=model_id, listed=listed, check=[ids[at] for at in lists.check])
        figures = known | {"at": database_now(session).isoformat()}
        set_state(session, project_id, SECOND_LOOKS, figures)
        return figures

    return store.run(keep)


def run_second_looks(context: WorkContext, job: JobRecord) -> dict[str, Any]:
    """Do a job of kind `second-looks`."""
    project = context.project_of(job)
    model, tagger = context.model_of(project)
    if isinstance(tagger, BlankTagger):
        return {"skipped": BLANK_REASON}
    looked = 0

    def tell(more: int) -> None:
        nonlocal looked
        looked += more
        context.heartbeat(done=looked, note="judging labels")

    summary = refresh_looks(context.store, project, model=model, tagger=tagger, progress=tell)
    return {name: summary[name] for name in ("fdr", "reference", "tested", "listed", "check")}


def _score_tasks(session: Session, project: ProjectRecord, tagger: Tagger, tasks: Sequence[int]) -> list[ScoredLook]:
    labels, known = labels_of(session, tasks), load_tasks(session, tasks)
    names = class_names(project.label_config, tagger.space.classes)
    wanted = [task for task in tasks if known[task].text is not None and labels[task].spans is not None]
    texts = [
        LabelledText(
            known[task].text or "",
            tuple(TextSpan(start, end, names.get(said, said)) for start, end, said in labels[task].spans or ()),
            language=known[task].language,
        )
        for task in wanted
    ]
    looks = []
    for task, scored in zip(wanted, _score_each(tagger, texts), strict=True):
        if isinstance(scored, Exception):  # the list is made without it
            reason = {"project": project.uid, "task": task, "reason": type(scored).__name__, "stack": stack_of(scored)}
            _log.error("label not judged", extra=reason)
            continue
        order = random_order_of(project.uid, known[task].external_id)
        score, doubt, evidence = scored
        looks.append(ScoredLook(task, labels[task].revision, score, doubt, order, evidence))
    return looks


def _score_each(
    tagger: Tagger, texts: Sequence[LabelledText]
) -> Sequence[tuple[float, float, dict[str, Any]] | Exception]:
    """Score texts together or, where one of them fails, one by one; that one's error stands in its place."""
    try:
        return score_texts(tagger, texts)
    except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to one label
        if len(texts) == 1:
            return [error]
        return [scored for text in texts for scored in _score_each(tagger, [text])]


def score_texts(tagger: Tagger, texts: Sequence[LabelledText]) -> list[tuple[float, float, dict[str, Any]]]:
    """Return, for each labelled text: how strange its label is, how doubtful the text is, and the evidence.

    The evidence, in characters: `word`, the least plausible one, with the probability of its label; `label`, entities
    of the label that are less likely than not, the least likely first; `model`, entities of the best labeling that the
    label does not have, the likeliest first. Each with its exact probability.
    """
    space = tagger.space
    tagged = tagger.potentials([each.text for each in texts], languages=[each.language for each in texts])
    return [_score(text, chain, space) for text, chain in zip(texts, tagged, strict=True)]


def best_list(space: LabelSpace, top: KBest, candidates: Candidates) -> RankedList:
    """Return the best labeling alone with its candidate spans, in tokens: what the value of a look comes from."""
    best = space.spans(top.labels[0])
    own = {(span.start, span.end) for span in best}
    return RankedList(
        space.classes,
        (float(top.log_probabilities[0]),),
        (tuple(TextSpan(*span) for span in best),),
        exhausted=False,
        candidates=tuple(
            Candidate(*key, tuple(row[:-1]))
            for key, row in zip(candidates.keys, candidates.probabilities.tolist(), strict=True)
            if 1.0 - row[-1] >= P_MIN or key in own
        ),
    )


def _score(text: LabelledText, tagged: Tagged, space: LabelSpace) -> tuple[float, float, dict[str, Any]]:
    alignment = to_token_spans(
        text.spans, tagged.tokens, text=text.text, boundaries=tagged.boundaries, classes=space.classes
    )
    if alignment.inexpressible or not tagged.tokens:
        return math.inf if alignment.inexpressible else 0.0, 0.0, {}
    weakest = weakest_label(tagged.potentials, space, spans=alignment.spans)
    marginals = entity_marginals(tagged.potentials, space, floor=listing_floor(space, P_MIN))
    top = kbest(tagged.potentials, 1)
    best = space.spans(top.labels[0])
    candidates = candidate_spans(marginals, space, p_min=P_MIN, extra=[*best, *alignment.spans])
    probability = {
        (start, end, name): p
        for (start, end), row in zip(candidates.keys, candidates.probabilities.tolist(), strict=True)
        for name, p in zip(space.classes, row, strict=False)
    }
    listed = best_list(space, top, candidates)

    def evidence_of(span: Span) -> list[Any]:
        start, end = tagged.tokens[span.start].start, tagged.tokens[span.end - 1].end
        return [start, end, span.label, round(probability[span.start, span.end, span.label], 9)]

    word = tagged.tokens[weakest.token or 0]
    held = set(alignment.spans)
    evidence = {
        "word": [word.start, word.end, math.exp(-weakest.score)],
        "label": sorted((e for e in map(evidence_of, alignment.spans) if e[3] < 0.5), key=lambda e: e[3]),
        "model": sorted((evidence_of(span) for span in best if span not in held), key=lambda e: -e[3]),
    }
    return weakest.score, review_value(one_unit(listed)), evidence
