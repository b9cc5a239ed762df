"""The tagger that runs a linear chain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from backend.tagger.language import LanguageGuess
from backend.tagger.linear.chains import dense_features
from backend.tagger.linear.learning import Learnt
from backend.tagger.linear.objective import Examples, Weights, chain_scores, score_tokens
from backend.tagger.linear.token_features import hash_tokens
from backend.tagger.linear.word_features import Hashes
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.reading import Read, read_rounds
from backend.tagger.tagger import Tagged
from backend.tagger.training_texts import Fingerprints, contains, fingerprint
from conformal.labels import LabelSpace
from conformal.trellis.potentials import Chain


class LinearTagger:
    """Runs a learnt linear chain, with the emissions of a network as further features if it was learnt so."""

    def __init__(
        self,
        *,
        name: str,
        digest: str,
        space: LabelSpace,
        known: Hashes,
        weights: Weights,
        languages: Sequence[str] = (),
        ancestors: Sequence[str] = (),
        base: NetworkTagger | None = None,
        seen: Fingerprints | None = None,
    ) -> None:
        self.name = name
        self.hash = digest
        self.base_hash = digest
        self.ancestors = tuple(ancestors)
        self.space = space
        self._guess = LanguageGuess(languages)
        self._known = known
        # Half the memory; the sums below are in float64 all the same.
        self._weights = weights._replace(sparse=weights.sparse.astype(np.float32))
        self._base = base
        self._seen = np.zeros(0, np.int64) if seen is None else seen
        transitions, start, end = chain_scores(weights, space)
        self.chain = Chain(transitions=transitions, start=start, end=end)

    @classmethod
    def of(cls, learnt: Learnt, *, base: NetworkTagger | None = None, languages: Sequence[str] = ()) -> LinearTagger:
        """Run what was just learnt, before it has a name and a hash; `base` is what `learn` was given."""
        return cls(
            name="learnt",
            digest="",
            space=learnt.space,
            known=learnt.known,
            weights=learnt.weights,
            languages=languages,
            base=base if learnt.report.uses_base else None,
        )

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that are told apart."""
        return self._guess.languages

    def potentials(self, texts: Sequence[str], *, languages: Sequence[str | None] | None = None) -> list[Tagged]:
        """Tag texts. A text's potentials do not depend on the texts beside it, beyond the last bits of a float.

        Raises InvalidText for anything that is not a str, and for a wrong number of languages.
        """
        tagged: list[Tagged] = []
        for reads in read_rounds(texts, self._guess, languages=languages):
            tagged += self._tag(reads)
        return tagged

    def _tag(self, reads: list[Read]) -> list[Tagged]:
        emissions = self._emissions(reads)
        ends = np.cumsum([0, *(len(read.tokens) for read in reads)])
        return [
            Tagged(
                read.text,
                read.tokens,
                self.chain.potentials(emissions[first:last], boundaries=read.boundaries),
                read.language,
                bool(read.tokens) and contains(self._seen, fingerprint(read.text, read.tokens)),
            )
            for read, first, last in zip(reads, ends[:-1], ends[1:], strict=True)
        ]

    def _emissions(self, reads: list[Read]) -> npt.NDArray[np.float64]:
        """Return the emissions of all tokens (T, L)."""
        hashed = hash_tokens([r.text for r in reads], [r.tokens for r in reads], [r.boundaries for r in reads])
        examples = Examples(
            find_rows(self._known, hashed.values),
            hashed.offsets,
            dense_features(reads, self._base),
            np.zeros(1, np.int64),
            np.zeros(0, np.int64),
        )
        return score_tokens(examples, self._weights)


def find_rows(known: Hashes, values: Hashes) -> npt.NDArray[np.int32]:
    """Return the place of each hash among the known ones, which are sorted; -1 where it is not one of them.

    >>> find_rows(np.array([3, 7], np.uint64), np.array([7, 5, 9], np.uint64)).tolist()
    [1, -1, -1]
    """
    if not len(known):
        return np.full(len(values), -1, np.int32)
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.where(known[places] == values, places, -1).astype(np.int32)
