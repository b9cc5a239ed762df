"""Training: one seed, one schedule, checkpoints that a killed run continues from to the same weights."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backend.tagger.checkpoints import data_digest, read_checkpoint, restore_optimizers, write_checkpoint
from backend.tagger.corpus import Corpus, Ints, Sample, Variation, take_words, vary
from backend.tagger.crf import chain_loss
from backend.tagger.entity_f1 import Counts, EntityCounter
from backend.tagger.errors import InvalidTraining
from backend.tagger.features import FeatureConfig
from backend.tagger.model import Model
from backend.tagger.model_info import NetworkConfig
from backend.tagger.network import Network, WordBatch
from backend.tagger.viterbi import best_labels
from conformal.labels import LabelSpace


@dataclass(frozen=True)
class TrainingConfig:
    """The recipe. With the data, the seed and one thread it decides the weights."""

    epochs: int = 10
    seed: int = 1
    batch_tokens: int = 1_500
    rate: float = 2e-3
    table_rate: float = 4e-3
    warm_up: float = 0.05
    dropout: float = 0.3
    word_dropout: float = 0.15
    feature_dropout: float = 0.2
    clip: float = 5.0
    patience: int = 4
    variation: Variation = field(default_factory=Variation)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens", "patience"):
            if getattr(self, name) < 1:
                raise InvalidTraining(f"expected {name} of at least 1, got {getattr(self, name)}")
        for name in ("dropout", "word_dropout", "feature_dropout", "warm_up"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InvalidTraining(f"expected {name} in 0..1, got {getattr(self, name)}")


@dataclass(frozen=True)
class EpochReport:
    """What an epoch did: mean loss a token, the development figures, whether these weights are the best so far."""

    epoch: int
    loss: float
    dev: Counts
    best: bool


@dataclass
class _State:
    epoch: int = 0
    step: int = 0
    best_f1: float = -1.0
    best_epoch: int = 0


Progress = Callable[[int, int, int, float], None]


def rate_scale(step: int, steps: int, *, warm_up: float) -> float:
    """Return the share of the largest learning rate at a step: linear warm-up, then cosine decay to zero.

    >>> [rate_scale(step, 4, warm_up=0.5) for step in (0, 1, 2, 4)]
    [0.5, 1.0, 1.0, 0.0]
    """
    warm = max(1, int(warm_up * steps))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warm) / max(1, steps - warm))))


def batches(samples: Sequence[Sample], *, budget: int, rng: np.random.Generator | None) -> Iterator[list[Sample]]:
    """Group samples of similar length into batches of about `budget` tokens, in random order when `rng` is given."""
    lengths = np.array([len(sample.words) for sample in samples])
    jitter = rng.random(len(lengths)) if rng is not None else np.zeros(len(lengths))
    order = np.argsort(-(lengths + jitter * 0.999), kind="stable")
    groups: list[list[int]] = [[]]
    for i in order.tolist():
        group = groups[-1]
        if group and (len(group) + 1) * lengths[group[0]] > budget:
            groups.append([i])
        else:
            group.append(i)
    places = rng.permutation(len(groups)) if rng is not None else np.arange(len(groups))
    for place in places.tolist():
        yield [samples[i] for i in groups[place]]


@dataclass(frozen=True)
class _Batch:
    words: WordBatch
    places: Tensor  # (B, N)
    lengths: Tensor  # (B,)
    labels: Tensor  # (B, N)


def _collate(corpus: Corpus, group: Sequence[Sample]) -> _Batch:
    lengths = np.array([len(sample.words) for sample in group])
    flat = np.concatenate([sample.words for sample in group])
    distinct, inverse = np.unique(flat, return_inverse=True)
    inside = np.arange(int(lengths.max()))[None, :] < lengths[:, None]  # (B, N)
    places: Ints = np.zeros(inside.shape, np.int64)
    places[inside] = inverse
    labels: Ints = np.zeros(inside.shape, np.int64)
    labels[inside] = np.concatenate([sample.labels for sample in group])
    words = WordBatch.of(take_words(corpus.features, distinct))
    return _Batch(words, torch.from_numpy(places), torch.from_numpy(lengths), torch.from_numpy(labels))


class Trainer:
    """Trains one network on one corpus; `run` may be called again after a kill with the same checkpoint directory."""

    def __init__(
        self,
        corpus: Corpus,
        space: LabelSpace,
        *,
        train: Sequence[Sample],
        dev: Sequence[Sample],
        config: TrainingConfig,
        start: Model | None = None,
    ) -> None:
        if not train or not dev:
            raise InvalidTraining(f"expected training and development texts, got {len(train)} and {len(dev)}")
        self.corpus, self.space, self.config = corpus, space, config
        self.train, self.dev = train, dev
        generator = torch.Generator().manual_seed(config.seed)
        self.network = Network(config.features, config.network, space, generator=generator)
        self._start_hash = ""
        if start is not None:
            self._copy(start)
        tables = [table.weight for table in self.network.tables]
        ids = {id(weight) for weight in tables}
        dense = [p for p in self.network.parameters() if id(p) not in ids]
        self._dense = dense
        self._optimizers: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.AdamW(dense, lr=config.rate, betas=(0.9, 0.98), weight_decay=0.01),
            torch.optim.SparseAdam(tables, lr=config.table_rate, betas=(0.9, 0.98)),
        )
        samples = ([(sample.words, sample.labels) for sample in part] for part in (train, dev))
        self._data = data_digest(samples, words=corpus.words)
        self._state = _State()
        self._best: dict[str, Tensor] = {}
        # An epoch's number of batches varies by a fraction of a percent with the draw; the schedule uses the first's.
        self.steps_per_epoch = sum(1 for _ in self._draw(0))

    def _copy(self, start: Model) -> None:
        """Begin with another model's weights; of its labels, those that this one has too."""
        if (start.info.features, start.info.network) != (self.config.features, self.config.network):
            raise InvalidTraining(
                f"expected a model of the same features and widths to start from, got {start.info.name}; leave it out"
            )
        theirs = start.info.space.labels
        pairs = [(i, theirs.index(label)) for i, label in enumerate(self.space.labels) if label in theirs]
        mine, other = (torch.tensor(ids) for ids in zip(*pairs, strict=True))
        with torch.no_grad():
            for (name, weight), (_, source) in zip(
                self.network.named_parameters(), start.network.named_parameters(), strict=True
            ):
                if name == "transitions":
                    weight[mine[:, None], mine[None, :]] = source[other[:, None], other[None, :]]
                elif name.startswith("emit.") or name in {"start", "end"}:
                    weight[mine] = source[other]
                else:
                    weight.copy_(source)
        self._start_hash = start.info.hash

    @property
    def best_epoch(self) -> int:
        """The epoch whose weights are kept."""
        return self._state.best_epoch

    def _draw(self, epoch: int) -> Iterator[list[Sample]]:
        rng = np.random.default_rng([self.config.seed, epoch])
        varied = vary(self.corpus, self.train, shares=self.config.variation, rng=rng)
        return batches(varied, budget=self.config.batch_tokens, rng=rng)

    def _rate(self, step: int) -> float:
        return rate_scale(step, self.config.epochs * self.steps_per_epoch, warm_up=self.config.warm_up)

    def run(self, *, checkpoints: Path | None = None, progress: Progress | None = None) -> Iterator[EpochReport]:
        """Train epoch by epoch until the last or until the development F1 has not risen for `patience` epochs.

        `progress(epoch, step, steps, loss)` is called after every batch. Afterwards `network` holds the best weights.
        """
        while self._state.epoch < self.config.epochs:
            if self._state.epoch - self._state.best_epoch >= self.config.patience and self._state.best_f1 >= 0:
                break
            self._state.epoch += 1
            loss = self._train_epoch(self._state.epoch, progress)
            counts = evaluate(self.network, self.corpus, self.space, samples=self.dev, budget=self.config.batch_tokens)
            best = counts.f1 > self._state.best_f1
            if best:
                self._state.best_f1, self._state.best_epoch = counts.f1, self._state.epoch
                self._best = {name: value.clone() for name, value in self.network.state_dict().items()}
            if checkpoints is not None:
                self.save(checkpoints)
            yield EpochReport(self._state.epoch, loss, counts, best)
        if self._best:
            self.network.load_state_dict(self._best)

    def _train_epoch(self, epoch: int, progress: Progress | None) -> float:
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + epoch)
        groups = list(self._draw(epoch))
        total, tokens = 0.0, 0
        for place, group in enumerate(groups, start=1):
            batch = _collate(self.corpus, group)
            scale = self._rate(self._state.step)
            for optimizer, rate in zip(self._optimizers, (self.config.rate, self.config.table_rate), strict=True):
                optimizer.param_groups[0]["lr"] = rate * scale
                optimizer.zero_grad()
            vectors = self.network.word_vectors(
                batch.words,
                word_dropout=self.config.word_dropout,
                dropout=self.config.feature_dropout,
                generator=generator,
            )
            emissions = self.network.emissions(
                vectors, batch.places, batch.lengths, dropout=self.config.dropout, generator=generator
            )
            transitions, start, end = self.network.chain()
            loss = chain_loss(
                emissions, batch.labels, lengths=batch.lengths, transitions=transitions, start=start, end=end
            )
            (loss / len(group)).backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._dense, self.config.clip)
            for optimizer in self._optimizers:
                optimizer.step()
            self._state.step += 1
            total += float(loss.detach())
            tokens += int(batch.lengths.sum())
            if not math.isfinite(total):
                raise InvalidTraining(f"expected a finite loss, got {total} in epoch {epoch}; lower --rate")
            if progress is not None:
                progress(epoch, place, len(groups), total / tokens)
        return total / tokens

    def save(self, directory: Path) -> None:
        """Write everything a continued run needs, whole or not at all."""
        write_checkpoint(
            directory,
            state=json.dumps(asdict(self._state)),
            fingerprint=self._fingerprint(),
            now=self.network.state_dict(),
            best=self._best,
            optimizers=self._optimizers,
        )

    def resume(self, directory: Path) -> int:
        """Continue from a checkpoint; return the epochs it holds. Refuses that of another recipe or of other data."""
        saved = read_checkpoint(directory, fingerprint=self._fingerprint())
        if saved is None:
            return 0
        self._state = _State(**json.loads(saved.state))
        self.network.load_state_dict(saved.now)
        self._best = saved.best
        restore_optimizers(saved, self._optimizers)
        return self._state.epoch

    def _fingerprint(self) -> str:
        data = [len(self.train), len(self.dev), self.corpus.tokens, list(self.space.labels), self._data]
        begun = [self._start_hash] if self._start_hash else []
        return json.dumps([asdict(self.config), data, *begun], sort_keys=True)


def evaluate(
    network: Network, corpus: Corpus, space: LabelSpace, *, samples: Sequence[Sample], budget: int = 1_500
) -> Counts:
    """Entity counts of the best labelings of `samples`."""
    counter = EntityCounter()
    with torch.inference_mode():
        transitions, start, end = network.chain()
        for group in batches(samples, budget=budget, rng=None):
            batch = _collate(corpus, group)
            emissions = network.emissions(network.word_vectors(batch.words), batch.places, batch.lengths)
            best = best_labels(emissions, batch.lengths, transitions=transitions, start=start, end=end)
            for sample, labels in zip(group, best, strict=True):
                counter.add(space.spans(sample.labels), space.spans(labels))
    return counter.total
