"""Thresholds as bytes: a JSON text that says what it is, with arrays as base64 of little-endian numbers."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from conformal.errors import ConformalError, InvalidThresholds
from conformal.labels import OUTSIDE, LabelSpace
from conformal.scores import Boundary, Method, Reference, Tuned
from conformal.strata import Strata
from conformal.subsequence import EntityMethod
from conformal.thresholds import LabelScores, RareRows, Thresholds

FORMAT = "surespan-thresholds"
VERSION = 1
WEIGHTED = 2  # the same with weights, which a reader of version 1 must not overlook
UNITS = 3  # with the tasks of units, and weights where there are any
_ENCODING = "arrays are base64 of little-endian numbers: scores float64 (inf: label out of reach), others int64"


def to_bytes(thresholds: Thresholds) -> bytes:
    """Return the JSON text of thresholds; keys are sorted, so equal thresholds give equal bytes."""
    method, entity, strata = thresholds.method, thresholds.entity_method, thresholds.strata
    document = {
        "format": FORMAT,
        "version": UNITS if thresholds.groups else WEIGHTED if thresholds.weights else VERSION,
        "encoding": _ENCODING,
        "method": {
            "name": method.name,
            "boundary": method.boundary.value,
            "limit": method.limit,
            "top_k": method.top_k,
            **_tuned_document(method.tuned),
        },
        "entity_method": {
            "name": entity.name,
            "weights": entity.weights,
            "p_min": entity.p_min,
            "n_min": entity.n_min,
            "top_k": entity.top_k,
            **({} if entity.limit is None else {"limit": entity.limit}),
            **_tuned_document(entity.tuned),
        },
        "strata": {
            "by_language": strata.by_language,
            "lengths": list(strata.lengths),
            "entities": None if strata.entities is None else list(strata.entities),
        },
        "n_min": thresholds.n_min,
        "classes": list(thresholds.classes),
        "cells": {cell: _pack(scores, "<f8") for cell, scores in thresholds.cells.items()},
        "labels": {
            name: {"scores": _pack(label.scores, "<f8"), "sizes": _pack(label.sizes, "<i8")} | _weights(label.weights)
            for name, label in thresholds.labels.items()
        },
        "rare": {
            "task": _pack(thresholds.rare.task, "<i8"),
            "label": _pack(thresholds.rare.label, "<i8"),
            "score": _pack(thresholds.rare.score, "<f8"),
            **_weights(thresholds.rare.weight),
        },
    }
    if thresholds.weights:
        document["weights"] = {cell: _pack(values, "<f8") for cell, values in thresholds.weights.items()}
        document["test_weight"] = thresholds.test_weight
    if thresholds.groups:
        document["groups"] = {cell: _pack(numbers, "<i8") for cell, numbers in thresholds.groups.items()}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def from_bytes(data: bytes) -> Thresholds:
    """Read `to_bytes` back; raises `InvalidThresholds` with what was wrong."""
    try:
        document = json.loads(data)
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidThresholds(f"expected thresholds as JSON, got something else: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InvalidThresholds(f"expected a document of format {FORMAT!r}, got another")
    if document.get("version") not in (VERSION, WEIGHTED, UNITS):
        raise InvalidThresholds(
            f"expected version {VERSION} to {UNITS}, got {document.get('version')!r}; calibrate again"
        )
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InvalidThresholds):
            raise
        what = str(error) if isinstance(error, ConformalError) else f"{type(error).__name__}: {error}"
        raise InvalidThresholds(f"expected complete thresholds, got a damaged document ({what})") from None


def _read(document: Mapping[str, Any]) -> Thresholds:
    method = document["method"]
    entity = document["entity_method"]
    layout = document["strata"]
    counts = layout["entities"]
    strata = Strata(bool(layout["by_language"]), tuple(layout["lengths"]), None if counts is None else tuple(counts))
    classes = LabelSpace(document["classes"]).classes
    chosen = Method(
        method["name"], Boundary(method["boundary"]), method["limit"], method["top_k"], _tuned(method.get("tuned"))
    )
    spans = EntityMethod(
        entity["name"],
        entity["weights"],
        entity["p_min"],
        entity["n_min"],
        entity["top_k"],
        entity.get("limit"),
        _tuned(entity.get("tuned")),
    )
    cells = {strata.check(cell): _scores(packed, chosen) for cell, packed in sorted(document["cells"].items())}
    labels: dict[str, LabelScores] = {}
    for name in (*classes, OUTSIDE):
        packed = document["labels"][name]
        scores, sizes = _scores(packed["scores"], spans), _unpack(packed["sizes"], "<i8")
        if len(scores) != len(sizes):
            raise InvalidThresholds(f"expected one size per score of {name!r}, got another number")
        labels[name] = LabelScores(scores, sizes, _read_weights(document, packed, len(scores)))
    rare = document["rare"]
    task, label, score = _unpack(rare["task"], "<i8"), _unpack(rare["label"], "<i8"), _unpack(rare["score"], "<f8")
    score = score.reshape(-1, 2) if spans.is_pair else score
    if not len(task) == len(label) == len(score):
        raise InvalidThresholds("expected rare rows of one length, got several")
    rows = RareRows(task, label, score, _read_weights(document, rare, len(score)))
    weights: dict[str, npt.NDArray[Any]] = {}
    if _is_weighted(document):
        by_cell = {cell: {"weights": packed} for cell, packed in document["weights"].items()}
        for cell, scores in cells.items():
            weights[cell] = _read_weights(document, by_cell[cell], len(scores))  # type: ignore[assignment]
    return Thresholds(
        chosen,
        spans,
        strata,
        int(document["n_min"]),
        classes,
        cells,
        labels,
        rows,
        weights,
        float(document["test_weight"]) if weights else 1.0,
        _read_groups(document, cells) if document["version"] == UNITS else {},
    )


def _is_weighted(document: Mapping[str, Any]) -> bool:
    return document["version"] == WEIGHTED or (document["version"] == UNITS and "weights" in document)


def _read_groups(document: Mapping[str, Any], cells: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    groups = {cell: _unpack(document["groups"][cell], "<i8") for cell in cells}
    for cell, numbers in groups.items():
        if numbers.size != len(cells[cell]) or np.any(numbers < -1):
            raise InvalidThresholds(f"expected the task of each of {len(cells[cell])} rows in {cell!r}, got others")
    return groups


def _weights(values: npt.NDArray[Any] | None) -> dict[str, str]:
    return {} if values is None else {"weights": _pack(values, "<f8")}


def _read_weights(document: Mapping[str, Any], part: Mapping[str, Any], count: int) -> npt.NDArray[Any] | None:
    if not _is_weighted(document):
        return None
    values = _unpack(part["weights"], "<f8")
    if values.size != count or not np.all(np.isfinite(values) & (values > 0)):
        raise InvalidThresholds(f"expected {count} weights above 0, got others")
    return values


def _tuned_document(tuned: Tuned | None) -> dict[str, Any]:
    """Return what a method froze; nothing for methods that freeze nothing, whose bytes stay as they were."""
    if tuned is None:
        return {}
    references = {name: _pack(reference.scores, "<f8") for name, reference in tuned.references}
    return {"tuned": {"lam": tuned.lam, "r0": tuned.r0, "share": tuned.share, "references": references}}


def _tuned(document: Mapping[str, Any] | None) -> Tuned | None:
    if document is None:
        return None
    references = tuple(
        (name, Reference(_sorted(_unpack(packed, "<f8")))) for name, packed in sorted(document["references"].items())
    )
    return Tuned(float(document["lam"]), int(document["r0"]), str(document["share"]), references)


def _scores(packed: str, method: Method | EntityMethod) -> npt.NDArray[Any]:
    values = _unpack(packed, "<f8")
    if not method.is_pair:
        return _sorted(values)
    pairs = values.reshape(-1, 2)
    _sorted(pairs[:, 0])
    return pairs


def _pack(values: npt.NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode("ascii")


def _unpack(text: str, kind: str) -> npt.NDArray[Any]:
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InvalidThresholds(f"expected base64, got something else: {error}") from None
    values = np.frombuffer(raw, dtype=kind)
    return values.astype(values.dtype.newbyteorder("="))


def _sorted(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if np.isnan(values).any() or np.any(values[1:] < values[:-1]):
        raise InvalidThresholds("expected ascending scores without NaN, got others")
    return values
