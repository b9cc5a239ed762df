"""Fit transitions and a temperature to labelled data: the likelihood of a CRF over a checkpoint's fixed scores.

Everything the checkpoint says stays as it is; what is learnt is how its words hang together and how far to trust it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.tagger.crf import chain_loss
from backend.tagger.errors import InvalidTraining
from backend.tagger.hf.batches import Batch, collate, group_pieces
from backend.tagger.hf.chain import FittedChain, structural
from backend.tagger.hf.classifier import Classifier, emissions_of
from backend.tagger.hf.mapping import Labels
from backend.tagger.hf.tagger import WindowModel
from backend.tagger.hf.windows import Piece, cut_texts
from backend.tagger.language import UNDETERMINED
from backend.tagger.readers.types import LabelledText
from backend.tagger.reading import Read
from backend.tagger.sentences import find_boundaries
from backend.tagger.spans import to_token_spans
from backend.tagger.tokens import tokenize
from backend.tagger.training_texts import fingerprints

_ROWS = 64
_RIDGE = 0.5  # times the squared scores of moves: keeps moves that never occur in few data finite


@dataclass(frozen=True)
class FitReport:
    """What fitting did: sentences used, texts left out by reason, and mean -log P a sentence before and after."""

    sentences: int
    left_out: dict[str, int]
    before: float
    after: float
    temperature: float


@dataclass(frozen=True)
class _Group:
    logits: Tensor  # (B, N, columns)
    firsts: Tensor  # (B, N)
    labels: Tensor  # (B, N)
    lengths: Tensor  # (B,)


def fit_chain(
    model: WindowModel, labels: Labels, *, texts: Sequence[LabelledText], rounds: int = 60
) -> tuple[FittedChain, FitReport]:
    """Fit the chain of a checkpoint to labelled texts by maximum likelihood, with a small ridge on the moves.

    Sentences are chains of their own, as in prediction. A text whose labels the checkpoint cannot say (a span that
    cuts a token, a class it has not, two neighbours of one class under IO) is left out and counted. Deterministic.
    Raises InvalidTraining when no text is left.
    """
    if not isinstance(model.emit, Classifier):
        raise InvalidTraining("expected a token-classification checkpoint, got a model with a chain of its own")
    groups, left_out = _prepare(model, model.emit, labels, texts)
    L = len(labels.space)
    allowed = torch.from_numpy(labels.allowed.copy())
    allowed_start = torch.from_numpy(labels.space.allowed_start.copy())
    heat = torch.zeros((), dtype=torch.float64, requires_grad=True)  # logarithm of the temperature
    moves = torch.zeros(L, L, dtype=torch.float64, requires_grad=True)
    start = torch.zeros(L, dtype=torch.float64, requires_grad=True)
    end = torch.zeros(L, dtype=torch.float64, requires_grad=True)
    count = sum(len(group.lengths) for group in groups)

    def loss() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for group in groups:
            total = total + chain_loss(
                emissions_of(group.logits, group.firsts, labels, temperature=heat.exp()),
                group.labels,
                lengths=group.lengths,
                transitions=moves.masked_fill(~allowed, -torch.inf),
                start=start.masked_fill(~allowed_start, -torch.inf),
                end=end,
            )
        return total

    with torch.no_grad():
        before = float(loss()) / count
    optimizer = torch.optim.LBFGS(
        [heat, moves, start, end], lr=1.0, max_iter=rounds, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = (loss() + _RIDGE * (moves.square().sum() + start.square().sum() + end.square().sum())) / count
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        after = float(loss()) / count
        plain = structural(labels)
        fitted = FittedChain(
            plain.labels,
            np.where(labels.allowed, moves.numpy(), -np.inf),
            np.where(labels.space.allowed_start, start.numpy(), -np.inf),
            end.numpy().copy(),
            float(heat.exp()),
            fingerprints(text.text for text in texts),
        )
    return fitted, FitReport(count, left_out, before, after, fitted.temperature)


def _prepare(
    model: WindowModel, emit: Classifier, labels: Labels, texts: Sequence[LabelledText]
) -> tuple[list[_Group], dict[str, int]]:
    """Run the checkpoint once over the texts; return its scores with the true labels, sentence by sentence."""
    reads: list[Read] = []
    truths: list[np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = []
    left_out: dict[str, int] = {}
    for text in texts:
        tokens = tuple(tokenize(text.text))
        boundaries = find_boundaries(text.text, tokens, language=text.language or UNDETERMINED)
        aligned = to_token_spans(
            text.spans, tokens, text=text.text, boundaries=boundaries, classes=labels.space.classes
        )
        truth = labels.space.ids(aligned.spans, len(tokens)).astype(np.int64)
        inside = [j for j in range(1, len(truth)) if j not in set(boundaries)]
        reason = aligned.inexpressible[0].reason.value if aligned.inexpressible else ""
        if not reason and not all(labels.allowed[truth[j - 1], truth[j]] for j in inside):
            reason = "neighbours of one class, which its labels cannot tell apart"
        if reason:
            left_out[reason] = left_out.get(reason, 0) + 1
        elif tokens:
            reads.append(Read(text.text, tokens, text.language or UNDETERMINED, boundaries))
            truths.append(truth)
    if not reads:
        raise InvalidTraining(f"expected labelled texts that the checkpoint can say, got none ({left_out})")
    scored = _scores(model, emit, reads)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for read, truth, (logits, firsts) in zip(reads, truths, scored, strict=True):
        for first, last in zip((0, *read.boundaries), (*read.boundaries, len(read.tokens)), strict=True):
            parts.append((logits[first:last], firsts[first:last], torch.from_numpy(truth[first:last])))
    parts.sort(key=lambda part: -len(part[2]))
    return [_pad(parts[i : i + _ROWS]) for i in range(0, len(parts), _ROWS)], left_out


def _scores(model: WindowModel, emit: Classifier, reads: list[Read]) -> list[tuple[Tensor, Tensor]]:
    """Return, for each text, the scores of its words (N, columns) and which piece each word has (N,)."""
    pieces = cut_texts(reads, model.subworder, limit=model.limit, margin=model.margin, by_sentence=model.by_sentence)
    columns = int(emit.model.config.num_labels or 0)
    scores = [torch.zeros(len(read.tokens), columns, dtype=torch.float64) for read in reads]
    firsts = [torch.full((len(read.tokens),), -1) for read in reads]
    for group in group_pieces(pieces, rows=8, budget=8_192):
        batch = collate(group, model.subworder)
        with torch.inference_mode():
            logits = emit.logits(batch)
        _keep(group, batch, logits, scores=scores, firsts=firsts)
    return list(zip(scores, firsts, strict=True))


def _keep(group: Sequence[Piece], batch: Batch, logits: Tensor, *, scores: list[Tensor], firsts: list[Tensor]) -> None:
    for row, piece in enumerate(group):
        begin, _, first, last = piece.window
        to = slice(piece.offset + first, piece.offset + last)
        scores[piece.text][to] = logits[row, first - begin : last - begin]
        firsts[piece.text][to] = batch.firsts[row, first - begin : last - begin]


def _pad(parts: Sequence[tuple[Tensor, Tensor, Tensor]]) -> _Group:
    logits, firsts, labels = zip(*parts, strict=True)
    padded = torch.nn.utils.rnn.pad_sequence
    return _Group(
        padded(list(logits), batch_first=True),
        padded(list(firsts), batch_first=True, padding_value=-1),
        padded(list(labels), batch_first=True),
        torch.tensor([len(one) for one in labels]),
    )
