"""The compiled network beside torch's: the same scores, whatever shares a batch, on whatever processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from backend.tagger.compiled.loading import LoadedNetwork, load_network
from backend.tagger.compiled.network import CompiledNetwork
from backend.tagger.compiled.products import add_product, pack
from backend.tagger.compiled.recurrent import sigmoid, tanh
from backend.tagger.language import LanguageGuess
from backend.tagger.model_files import BUNDLED, model_directory
from backend.tagger.model_info import SEEN, parse_info
from backend.tagger.network_tagger import NetworkTagger
from backend.tagger.reading import Read, read_rounds
from backend.tagger.saved_file import read_saved
from conformal.trellis import kbest
from tests.support.paths import ROOT
from tests.support.torch_tagger import TorchTagger

DIRECTORY = model_directory(BUNDLED)
TEXTS = [
    "Anna Berg lives in Rome. She met Ивана Волкова there in 1984, at Straße 5b.",
    "",
    "Rome",
    "  \n\t ",
    "日本。" * 40,
    "A" * 3_000 + " or " + "naïve-looking ﬁnancial tokens #@! …",
    " ".join(f"word{i} Anna Berg of Northgate Ltd" for i in range(120)),  # one sentence, tagged in windows
    "Gdańsk , São Roque and the river\u0301 x\u200by 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
]


@pytest.fixture(scope="module")
def tagger() -> NetworkTagger:
    return NetworkTagger(load_network(DIRECTORY))


@pytest.fixture(scope="module")
def reference() -> TorchTagger:
    return TorchTagger(DIRECTORY)


def _read(texts: list[str]) -> list[Read]:
    return [read for part in read_rounds(texts, LanguageGuess([])) for read in part]


def test_scores_and_labelings_are_those_of_torch(tagger: NetworkTagger, reference: TorchTagger) -> None:
    read = _read(TEXTS)
    for text, ours, theirs in zip(read, tagger.emissions(read), reference.emissions(read), strict=True):
        assert ours.shape == theirs.shape == (len(text.tokens), len(tagger.space))
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-4)
        if len(text.tokens):
            best = kbest([tagger.chain.potentials(each) for each in (ours, theirs)], 5)
            np.testing.assert_array_equal(best[0].labels, best[1].labels)


def test_a_text_has_the_same_scores_whatever_stands_beside_it(tagger: NetworkTagger) -> None:
    read = _read(TEXTS)
    alone = [tagger.emissions([each])[0] for each in read]
    for order in (range(len(read)), [5, 2, 0, 7, 6, 1, 4, 3], [6, 6, 0]):
        for i, scores in zip(order, tagger.emissions([read[i] for i in order]), strict=True):
            np.testing.assert_array_equal(scores, alone[i])


def test_words_that_were_forgotten_have_the_same_scores(tagger: NetworkTagger) -> None:
    info, arrays, _ = read_saved(DIRECTORY, parse_info)
    seen = arrays.pop(SEEN)
    few = NetworkTagger(LoadedNetwork(CompiledNetwork(arrays, info, known_words=4), info, seen))
    read = _read(TEXTS)
    for ours, theirs in zip(few.emissions(read), tagger.emissions(read), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 15, 63, 64, 65, 130])
@pytest.mark.parametrize(("inner", "columns"), [(1, 1), (7, 33), (64, 200), (0, 5)])
def test_a_product_is_exact_enough_and_every_row_is_its_own(rows: int, inner: int, columns: int) -> None:
    rng = np.random.default_rng(rows * 1_000 + inner)
    left = rng.normal(size=(rows, inner)).astype(np.float32)
    right = rng.normal(size=(inner, columns)).astype(np.float32)
    packed = pack(right)
    result = np.ones((rows, packed.width), np.float32)
    add_product(result, left, packed.panels)
    np.testing.assert_allclose(result[:, :columns], left @ right + 1, rtol=0, atol=2e-5)
    assert (result[:, columns:] == 1).all()
    for i in range(rows):
        alone = np.ones((1, packed.width), np.float32)
        add_product(alone, left[i : i + 1], packed.panels)
        np.testing.assert_array_equal(alone[0], result[i])


def test_the_gates_are_tanh_and_sigmoid() -> None:
    points = np.concatenate([np.linspace(-30, 30, 4_001), [-1e30, -1e-30, 0.0, 1e-30, 1e30]]).astype(np.float32)
    wide = points.astype(np.float64)
    np.testing.assert_allclose([tanh(x) for x in points], np.tanh(wide), rtol=0, atol=3e-7)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose([sigmoid(x) for x in points], 1 / (1 + np.exp(-wide)), rtol=0, atol=3e-7)


_ELSEWHERE = """
import sys
import numpy as np
from backend.tagger.compiled import instructions
from backend.tagger.compiled.loading import LoadedNetwork, load_network

words = sys.argv[2].split()
scores = load_network(sys.argv[1]).network.emissions(words, np.array([len(words) - 3, 3]))
np.save(sys.argv[3], scores)
print(instructions.WIDE, instructions.FUSES)
"""


@pytest.mark.heavy
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names processors of x86")
@pytest.mark.parametrize(
    ("name", "features", "said", "tolerance"),
    [("haswell", "+avx2,+fma", "False True", 0.0), ("generic", "", "False False", 2e-5)],
)
def test_narrow_and_old_processors_say_the_same(
    tmp_path: Path, tagger: NetworkTagger, name: str, features: str, said: str, tolerance: float
) -> None:
    sentence = "Anna Berg lives in Rome , near the River Tiber . She left"
    file = tmp_path / "scores.npy"
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, str(DIRECTORY), sentence, str(file)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == said.split()
    words = sentence.split()
    ours = tagger._network.emissions(words, np.array([len(words) - 3, 3]))
    np.testing.assert_allclose(np.load(file), ours, rtol=0, atol=tolerance)
