"""Answers as Label Studio predictions: worst first, so that the last one, which becomes the prelabel, is rank 1.

Every name in a result comes from the project's label config; one wrong name would make Label Studio drop the batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from backend.documents.document import Document
from backend.domain.flag_rule import FlagPromise
from backend.domain.ranked import Labeling
from backend.domain.records import TextSpan
from backend.domain.target import Target
from backend.labelstudio.versions import ranked_version, same_words_version
from backend.prediction.answer import Answer
from backend.prediction.prediction import DoubtfulSpan, size_of
from backend.prediction.same_words import SameWords

NOT_AN_ENTITY = "O"
_SAME_WORDS = 0  # in the place of a rank, where ids of regions are made

Result = dict[str, Any]


def render(
    answer: Answer, document: Document, *, target: Target, project: str, task: str, same: Sequence[SameWords] = ()
) -> list[Result]:
    """Return the predictions of a task in the order that Label Studio wants them: rank 1 last.

    Words that people labelled elsewhere (`same`) are a prediction of their own, the first: no rank of the set has them.
    """
    ranked: list[Result] = [
        {
            "model_version": ranked_version(answer.model_version, labeling.rank),
            "score": answer.priority_of_rank(labeling),
            "result": _results(answer, labeling, document, target=target, project=project, task=task),
        }
        for labeling in reversed(answer.labelings)
    ]
    if not same:
        return ranked
    placed = [
        (span.start, _label(span, document, target=target, region=_region(project, task, *span[:2], _SAME_WORDS)))
        for span in answer.best.spans
    ]
    placed += [
        (each.span.start, result)
        for each, result in zip(same, _same(same, document, target=target, project=project, task=task), strict=True)
    ]
    added = {
        "model_version": same_words_version(answer.model_version),
        "score": ranked[0]["score"] / 2,
        "result": [result for _, result in sorted(placed, key=lambda each: each[0])],
    }
    return [added, *ranked]


def render_empty(model_version: str, *, priority: float = 0.0) -> list[Result]:
    """Return the prediction of a task that gets none: an entry all the same, first in "least certain first"."""
    return [{"model_version": model_version, "score": priority, "result": []}]


def render_suggestion(
    answer: Answer,
    document: Document,
    *,
    target: Target,
    project: str,
    task: str,
    present: Collection[TextSpan],
    same: Sequence[SameWords] = (),
) -> Result:
    """Return the answer of interactive mode: what the best consistent labelings add to the spans that are there.

    The editor takes one prediction, which gets the words that were labelled elsewhere in the text (`same`) too; the
    other labelings go along under `alternatives`.
    """
    rendered: list[Result] = [
        {
            "model_version": ranked_version(answer.model_version, labeling.rank),
            "score": labeling.probability,
            "result": [
                _label(
                    span, document, target=target, region=_region(project, task, span.start, span.end, labeling.rank)
                )
                for span in labeling.spans
                if span not in present
            ],
        }
        for labeling in answer.labelings
    ]
    added = _same(same, document, target=target, project=project, task=task)
    return rendered[0] | {"result": rendered[0]["result"] + added, "alternatives": rendered[1:]}


def _same(same: Sequence[SameWords], document: Document, *, target: Target, project: str, task: str) -> list[Result]:
    """Return words that were labelled elsewhere as regions that say so."""
    return [
        _shown(each.span, document, target=target, region=_region(project, task, *each.span[:2], _SAME_WORDS))
        | {
            "meta": {
                "text": ["same words as in " + ("this task" if each.task is None else f"task {each.task}")],
                "same_words": {"task": task if each.task is None else each.task}
                | ({} if each.task is None else {"labelled": each.labelled, "of": each.met}),
            }
        }
        for each in same
    ]


def _results(
    answer: Answer, labeling: Labeling, document: Document, *, target: Target, project: str, task: str
) -> list[Result]:
    doubts = {(each.start, each.end): each for each in answer.spans}
    held = {(span.start, span.end): span for span in labeling.spans}
    flagged = {key for key, doubt in doubts.items() if doubt.flagged} if target.flag else set()
    about = {
        "probability": round(labeling.probability, 6),
        **size_of(answer.set_size, answer.set_size_log10),
        "open": answer.open,
        "alpha": answer.alpha,
        "n": answer.n,
        "guarantee": answer.guarantee,
        "threshold_version": answer.threshold_version,
        **({} if answer.flags is None else {"flags": _promise(answer.flags)}),
    }
    results: list[Result] = []
    for start, end in sorted(held.keys() | flagged):
        region = _region(project, task, start, end, labeling.rank)
        doubt = doubts.get((start, end))
        meta = about | (_doubt(doubt, target, document.text) if doubt is not None and doubt.flagged else {})
        span = held.get((start, end))
        own = _probability(doubt, span)
        score = {} if own is None else {"score": own}
        if (start, end) in flagged and target.flag is not None:
            flag = target.flag
            value = _value(document, start, end)
            results.append(_result(region, flag.control, flag.kind, target, value, flag.value) | score | {"meta": meta})
            meta = {}  # both results are one region, and its meta is said once
        if span is not None:
            label = _label(span, document, target=target, region=region) | score
            results.append(label | {"meta": meta} if meta else label)
    return results


def _label(span: TextSpan, document: Document, *, target: Target, region: str) -> Result:
    return _shown(span._replace(label=target.labels[span.label]), document, target=target, region=region)


def _shown(span: TextSpan, document: Document, *, target: Target, region: str) -> Result:
    """Return a region with the label that the span itself has."""
    value = _value(document, span.start, span.end)
    return _result(region, target.control, target.kind, target, value, span.label)


def _value(document: Document, start: int, end: int) -> dict[str, Any]:
    return {**document.place(start, end), "text": document.text[start:end]}


def _result(region: str, control: str, kind: str, target: Target, value: dict[str, Any], label: str) -> Result:
    return {
        "id": region,
        "from_name": control,
        "to_name": target.text.name,
        "type": kind,
        "value": value | {kind: [label]},
    }


def _doubt(doubt: DoubtfulSpan, target: Target, text: str) -> dict[str, Any]:
    names = [target.labels.get(held.label, NOT_AN_ENTITY) for held in doubt.labels]
    shown = " | ".join("not an entity" if name == NOT_AN_ENTITY else name for name in names)
    also = [_sentence(spans, target, text) for spans in doubt.also]
    said = shown or "no label is likely enough"
    return {
        "text": [f"{said}. In this sentence also plausible: {'; '.join(also)}" if also else said],
        **({"also": also} if also else {}),
        "candidates": names,
        "p_values": [round(held.p_value, 6) for held in doubt.labels],
        "probabilities": [round(held.probability, 6) for held in doubt.labels],
    }


def _promise(flags: FlagPromise) -> dict[str, Any]:
    """Return what is promised about what is not flagged, as the meta of a region has it."""
    return {
        "max_error": flags.max_error,
        "guarantee": flags.guarantee.value,
        "n": flags.n,
        "promise": flags.sentence,
    }


def _sentence(spans: Sequence[TextSpan], target: Target, text: str) -> str:
    """Return a labeling of a sentence in words."""
    return ", ".join(f"{text[s.start : s.end]} ({target.labels[s.label]})" for s in spans) or "no entity"


def _probability(doubt: DoubtfulSpan | None, span: TextSpan | None) -> float | None:
    if doubt is None or span is None:
        return None
    own = [held.probability for held in doubt.labels if held.label == span.label]
    return min(1.0, max(0.0, own[0])) if own else None


def _region(project: str, task: str, start: int, end: int, rank: int) -> str:
    """Return an id that is the same whenever this span of this rank is shown again, under any version."""
    name = f"{project}\0{task}\0{start}\0{end}\0{rank}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(name).hexdigest()[:16]
