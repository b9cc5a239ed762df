from pathlib import Path

import conformal
from backend.tagger import tagger as tagger_module
from backend.tagger.loading import load_tagger
from backend.tagger.model import MODEL_FILE
from backend.tagger.model_files import BUNDLED

MERKEL = {"Angela Merkel": "PER", "Emmanuel Macron": "PER", "Paris": "LOC"}


def test_the_bundled_model() -> None:
    tagger = load_tagger(BUNDLED)
    assert tagger.space.classes == ("LOC", "MISC", "ORG", "PER")
    assert tagger.languages == ("de", "en", "es", "fr", "it", "nl", "pl", "pt", "ru")
    assert len(tagger.hash) == 64
    texts = [
        ("en", "Yesterday Angela Merkel and Emmanuel Macron spoke with the press in Paris.", MERKEL),
        ("de", "Sie studierte an der Universität Heidelberg und lebte in München.", {"München": "LOC"}),
        ("es", "Nació en Madrid y murió en Buenos Aires.", {"Madrid": "LOC", "Buenos Aires": "LOC"}),
        ("ru", "Он родился в Москве.", {"Москве": "LOC"}),
        ("en", "The meeting starts at noon and nobody knows why.", {}),
    ]
    for (language, text, wanted), one in zip(texts, tagger.potentials([t for _, t, _ in texts]), strict=True):
        assert one.language == language
        spans = tagger.space.spans(conformal.kbest(one.potentials, 1).labels[0])
        found = {text[one.tokens[s.start].start : one.tokens[s.end - 1].end]: s.label for s in spans}
        assert wanted.items() <= found.items()
        assert wanted or not found


def test_the_bundled_model_is_small() -> None:
    place = Path(tagger_module.__file__).parent / BUNDLED
    names = {"MODEL_CARD.md", "LICENSE", MODEL_FILE}
    assert names <= {file.name for file in place.iterdir()}
    assert sum((place / name).stat().st_size for name in names) <= 16_000_000
