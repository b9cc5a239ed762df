"""Training of BERT-BiLSTM-CRF: rates that fall towards the lower layers, accumulated gradients, early stopping.

A killed run continues from its last checkpoint, also in the middle of an epoch, to the same weights.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from backend.tagger.checkpoints import data_digest, read_checkpoint, restore_optimizers, write_checkpoint
from backend.tagger.crf import chain_loss
from backend.tagger.encoder.network import EncoderNetwork, HeadConfig
from backend.tagger.encoder.samples import EncodedSample
from backend.tagger.entity_f1 import Counts, EntityCounter
from backend.tagger.errors import InvalidTraining
from backend.tagger.hf.batches import collate
from backend.tagger.hf.subwords import Ints, Subworder
from backend.tagger.training import EpochReport, rate_scale
from backend.tagger.viterbi import best_labels
from conformal.labels import LabelSpace

_LAYER = re.compile(r"\.layers?\.(\d+)\.")


@dataclass(frozen=True)
class EncoderTraining:
    """The recipe. With the data, the encoder, the seed and one thread it decides the weights.

    `rate` is for what stands on the encoder, `encoder_rate` for its uppermost layer; each layer below learns `decay`
    times as fast. `accumulate` batches of about `batch_tokens` pieces make one step.
    """

    epochs: int = 5
    seed: int = 1
    batch_tokens: int = 1_000
    accumulate: int = 1
    rate: float = 1e-3
    encoder_rate: float = 1e-4
    decay: float = 0.9
    warm_up: float = 0.1
    dropout: float = 0.3
    clip: float = 5.0
    patience: int = 2
    save_every: int = 200
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens", "accumulate", "patience", "save_every"):
            if getattr(self, name) < 1:
                raise InvalidTraining(f"expected {name} of at least 1, got {getattr(self, name)}")
        for name in ("dropout", "warm_up"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InvalidTraining(f"expected {name} in 0..1, got {getattr(self, name)}")
        if not 0.0 < self.decay <= 1.0:
            raise InvalidTraining(f"expected a decay above 0, at most 1, got {self.decay}")


@dataclass
class _State:
    epoch: int = 0  # epochs that are over
    place: int = 0  # steps of the epoch under way that are over
    step: int = 0
    best_f1: float = -1.0
    best_epoch: int = 0
    loss: float = 0.0
    words: int = 0


Progress = Callable[[int, int, int, float], None]


def parameter_groups(network: EncoderNetwork, config: EncoderTraining) -> list[dict[str, object]]:
    """Return AdamW's groups: one a layer of the encoder, each with its own largest rate, and one for the head.

    Biases and norms are not decayed. Frozen weights are in no group.
    """
    names = [name for name, weight in network.named_parameters() if weight.requires_grad]
    weights = dict(network.named_parameters())
    layers = {name: int(match[1]) for name in names if (match := _LAYER.search(name)) and name.startswith("encoder.")}
    count = 1 + max(layers.values(), default=-1)

    def depth(name: str) -> int:
        """Layers above; embeddings have them all above, a pooler none."""
        if not name.startswith("encoder."):
            return -1
        if name in layers:
            return count - 1 - layers[name]
        return count if "embed" in name else 0

    groups: list[dict[str, object]] = []
    for level in sorted({depth(name) for name in names}):
        rate = config.rate if level < 0 else config.encoder_rate * config.decay**level
        for plain in (False, True):
            chosen = [weights[name] for name in names if depth(name) == level and (weights[name].ndim < 2) is plain]
            if chosen:
                groups.append({"params": chosen, "lr": rate, "weight_decay": 0.0 if plain else 0.01, "largest": rate})
    return groups


def draw_groups(samples: Sequence[EncodedSample], *, budget: int, rng: np.random.Generator | None) -> list[list[int]]:
    """Group samples of similar length into batches of about `budget` pieces, in random order when `rng` is given."""
    sizes = np.array([len(sample.piece.ids) for sample in samples])
    jitter = rng.random(len(sizes)) if rng is not None else np.zeros(len(sizes))
    groups: list[list[int]] = [[]]
    for i in np.argsort(-(sizes + jitter * 3.0), kind="stable").tolist():
        group = groups[-1]
        if group and (len(group) + 1) * (sizes[group].max() + 4) > budget:
            groups.append([i])
        else:
            group.append(i)
    places = rng.permutation(len(groups)) if rng is not None else np.arange(len(groups))
    return [groups[place] for place in places.tolist()]


class EncoderTrainer:
    """Trains one network on one corpus; `run` may be called again after a kill with the same checkpoint directory."""

    def __init__(
        self,
        network: EncoderNetwork,
        subworder: Subworder,
        space: LabelSpace,
        *,
        train: Sequence[EncodedSample],
        dev: Sequence[EncodedSample],
        config: EncoderTraining,
        origin: str = "",
    ) -> None:
        if not train or not dev:
            raise InvalidTraining(f"expected training and development texts, got {len(train)} and {len(dev)}")
        self.network, self.subworder, self.space, self.config = network, subworder, space, config
        self.train, self.dev = train, dev
        self._origin = origin
        self._learning = [weight for weight in network.parameters() if weight.requires_grad]
        self._optimizer = torch.optim.AdamW(parameter_groups(network, config), betas=(0.9, 0.98))
        self._data = data_digest(
            [(sample.piece.ids, sample.piece.firsts, sample.labels) for sample in part] for part in (train, dev)
        )
        self._state = _State()
        self._best: dict[str, Tensor] = {}
        # An epoch's number of steps varies by a fraction of a percent with the draw; the schedule uses the first's.
        self.steps_per_epoch = len(self._steps(0))

    @property
    def best_epoch(self) -> int:
        """The epoch whose weights are kept."""
        return self._state.best_epoch

    def _steps(self, epoch: int) -> list[list[list[int]]]:
        """Return an epoch's steps, each a list of batches of samples."""
        rng = np.random.default_rng([self.config.seed, epoch])
        groups = draw_groups(self.train, budget=self.config.batch_tokens, rng=rng)
        size = self.config.accumulate
        return [groups[i : i + size] for i in range(0, len(groups), size)]

    def run(self, *, checkpoints: Path | None = None, progress: Progress | None = None) -> Iterator[EpochReport]:
        """Train epoch by epoch until the last or until the development F1 has not risen for `patience` epochs.

        `progress(epoch, step, steps, loss)` is called after every step. Afterwards `network` holds the best weights.
        """
        while self._state.epoch < self.config.epochs:
            if self._state.epoch - self._state.best_epoch >= self.config.patience and self._state.best_f1 >= 0:
                break
            loss = self._train_epoch(self._state.epoch + 1, checkpoints, progress)
            self._state.epoch += 1
            counts = evaluate(
                self.network, self.space, samples=self.dev, subworder=self.subworder, budget=self.config.batch_tokens
            )
            best = counts.f1 > self._state.best_f1
            if best:
                self._state.best_f1, self._state.best_epoch = counts.f1, self._state.epoch
                self._best = {name: value.clone() for name, value in self.network.state_dict().items()}
            if checkpoints is not None:
                self.save(checkpoints)
            yield EpochReport(self._state.epoch, loss, counts, best)
        if self._best:
            self.network.load_state_dict(self._best)
        self.network.eval()

    def _train_epoch(self, epoch: int, checkpoints: Path | None, progress: Progress | None) -> float:
        steps = self._steps(epoch)
        state = self._state
        for place in range(state.place, len(steps)):
            loss, words = self._step(epoch, place, steps[place])
            state.loss += loss
            state.words += words
            state.place = place + 1
            state.step += 1
            if not math.isfinite(state.loss):
                raise InvalidTraining(f"expected a finite loss, got {state.loss} in epoch {epoch}; lower --rate")
            if progress is not None:
                progress(epoch, place + 1, len(steps), state.loss / state.words)
            if checkpoints is not None and state.place % self.config.save_every == 0 and state.place < len(steps):
                self.save(checkpoints)
        mean = state.loss / max(1, state.words)
        state.place, state.loss, state.words = 0, 0.0, 0
        return mean

    def _step(self, epoch: int, place: int, groups: Sequence[Sequence[int]]) -> tuple[float, int]:
        """Take one step; return the summed loss and the number of words it was over."""
        total = self.config.epochs * self.steps_per_epoch
        scale = rate_scale(self._state.step, total, warm_up=self.config.warm_up)
        for layer in self._optimizer.param_groups:
            layer["lr"] = layer["largest"] * scale
        self._optimizer.zero_grad()
        self.network.train()
        if self.config.head.frozen:
            self.network.encoder.train(False)
        seed = (self.config.seed * 1_000_003 + epoch) * 1_000_003 + place
        generator = torch.Generator().manual_seed(seed)
        count = sum(len(group) for group in groups)
        loss_sum, words = 0.0, 0
        # The encoder's own dropout reads torch's global generator: seeded for this step alone, then put back.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for group in groups:
                samples = [self.train[i] for i in group]
                loss = self._loss(samples, generator)
                (loss / count).backward()  # type: ignore[no-untyped-call]
                loss_sum += float(loss.detach())
                words += sum(len(sample.labels) for sample in samples)
        nn.utils.clip_grad_norm_(self._learning, self.config.clip)
        self._optimizer.step()
        return loss_sum, words

    def _loss(self, samples: Sequence[EncodedSample], generator: torch.Generator) -> Tensor:
        batch = collate([sample.piece for sample in samples], self.subworder)
        states = self.network.states(batch)
        emissions = self.network.emissions(states, batch.lengths, dropout=self.config.dropout, generator=generator)
        transitions, start, end = self.network.chain()
        labels = torch.from_numpy(pad_labels(samples))
        return chain_loss(emissions, labels, lengths=batch.lengths, transitions=transitions, start=start, end=end)

    def save(self, directory: Path) -> None:
        """Write everything a continued run needs, whole or not at all."""
        write_checkpoint(
            directory,
            state=json.dumps(asdict(self._state)),
            fingerprint=self._fingerprint(),
            now=self.network.state_dict(),
            best=self._best,
            optimizers=[self._optimizer],
        )

    def resume(self, directory: Path) -> tuple[int, int]:
        """Continue from a checkpoint; return the epochs and the further steps it holds. Refuses another recipe's."""
        saved = read_checkpoint(directory, fingerprint=self._fingerprint())
        if saved is not None:
            self._state = _State(**json.loads(saved.state))
            self.network.load_state_dict(saved.now)
            self._best = saved.best
            restore_optimizers(saved, [self._optimizer])
        return self._state.epoch, self._state.place

    def _fingerprint(self) -> str:
        pieces = [sum(len(sample.piece.ids) for sample in part) for part in (self.train, self.dev)]
        data = [len(self.train), len(self.dev), *pieces, list(self.space.labels), self._origin, self._data]
        # How often a checkpoint is written does not change what is learnt.
        recipe = {name: value for name, value in asdict(self.config).items() if name != "save_every"}
        return json.dumps([recipe, data], sort_keys=True)


def pad_labels(samples: Sequence[EncodedSample]) -> Ints:
    """Return the labels of samples as one matrix (B, N), zeros behind."""
    labels: Ints = np.zeros((len(samples), max(len(sample.labels) for sample in samples)), np.int64)
    for row, sample in zip(labels, samples, strict=True):
        row[: len(sample.labels)] = sample.labels
    return labels


def evaluate(
    network: EncoderNetwork,
    space: LabelSpace,
    *,
    samples: Sequence[EncodedSample],
    subworder: Subworder,
    budget: int = 1_000,
) -> Counts:
    """Entity counts of the best labelings of `samples`."""
    counter = EntityCounter()
    network.eval()
    with torch.inference_mode():
        transitions, start, end = network.chain()
        for group in draw_groups(samples, budget=budget, rng=None):
            chosen = [samples[i] for i in group]
            batch = collate([sample.piece for sample in chosen], subworder)
            best = best_labels(network(batch), batch.lengths, transitions=transitions, start=start, end=end)
            for sample, labels in zip(chosen, best, strict=True):
                counter.add(space.spans(sample.labels), space.spans(labels))
    return counter.total
