from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import conformal
from backend.domain.records import TextSpan
from backend.tagger.entity_f1 import EntityCounter, entity_f1
from backend.tagger.errors import InvalidTraining
from backend.tagger.linear.chains import build_chains
from backend.tagger.linear.fitting import Recipe
from backend.tagger.linear.learning import Learnt, learn
from backend.tagger.linear.saved import load_base
from backend.tagger.linear.tagger import LinearTagger
from backend.tagger.readers import LabelledText
from conformal.labels import LabelSpace
from conformal.trellis.forward import log_probability, run_forward
from tests.support.toy_texts import toy_texts


def same(one: Learnt, other: Learnt) -> bool:
    pairs = zip((one.known, *one.weights), (other.known, *other.weights), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def text(words: str, *spans: tuple[int, int, str]) -> LabelledText:
    return LabelledText(words, tuple(TextSpan(*span) for span in spans))


def test_it_learns_a_toy_language_from_forty_texts() -> None:
    learnt = learn(toy_texts(40, seed=1))
    tagger = LinearTagger.of(learnt)
    assert entity_f1(tagger, toy_texts(200, seed=2)) > 0.85
    assert learnt.report.held_f1 is not None
    assert learnt.report.held_f1 > 0.7
    assert learnt.report.folds == 5


def test_forty_texts_are_better_than_ten() -> None:
    test = toy_texts(200, seed=2)
    few, more = (entity_f1(LinearTagger.of(learn(toy_texts(n, seed=1))), test) for n in (10, 60))
    assert few < more


def test_the_same_texts_give_the_same_weights() -> None:
    assert same(learn(toy_texts(20, seed=3)), learn(toy_texts(20, seed=3)))
    assert not same(learn(toy_texts(20, seed=3)), learn(toy_texts(20, seed=4)))


def noisy(count: int, *, seed: int) -> list[LabelledText]:
    """Every third label of the toy language is left out: nobody can be sure of it."""
    rng = np.random.default_rng(seed)
    return [LabelledText(one.text, () if rng.random() < 1 / 3 else one.spans) for one in toy_texts(count, seed=seed)]


def test_the_temperature_makes_held_out_labels_likelier() -> None:
    learnt = learn(noisy(60, seed=1))
    scale = learnt.report.temperature
    assert 0.05 <= scale < 0.95
    tagger = LinearTagger.of(learnt)
    test = noisy(100, seed=5)

    def loss(factor: float) -> float:
        total = 0.0
        for one, tagged in zip(test, tagger.potentials([t.text for t in test]), strict=True):
            p = tagged.potentials
            hotter = conformal.Potentials(
                emissions=p.emissions * factor,
                transitions=p.transitions * factor,
                start=p.start * factor,
                end=p.end * factor,
            )
            labels = [label for label, _ in _labels(one, tagged.tokens, tagger.space)]
            total -= log_probability(hotter, labels)
        return total

    # Close to the best of a wide range, on texts that nothing was chosen on.
    assert loss(1.0) < min(loss(4.0), loss(0.25))


def _labels(one: LabelledText, tokens: Sequence[tuple[int, int]], space: LabelSpace) -> list[tuple[int, int]]:
    found = []
    for j, (start, _) in enumerate(tokens):
        inside = [s for s in one.spans if s.start <= start < s.end]
        begins = bool(inside) and inside[0].start == start
        found.append((0 if not inside else space.begin(inside[0].label) + (not begins), j))
    return found


def test_probabilities_are_of_legal_labelings_alone() -> None:
    tagger = LinearTagger.of(learn(toy_texts(20, seed=3)))
    tagged = tagger.potentials(["The patient took bakomol daily .", "", "   "])
    p = tagged[0].potentials
    illegal = np.zeros(p.length, np.int64)
    illegal[2] = tagger.space.begin("Drug") + 1
    assert log_probability(p, illegal) == -np.inf
    assert np.isfinite(run_forward(p).log_partition)
    assert [t.potentials.length for t in tagged[1:]] == [0, 0]


def test_a_texts_potentials_do_not_depend_on_the_texts_beside_it() -> None:
    tagger = LinearTagger.of(learn(toy_texts(20, seed=3)))
    texts = [t.text for t in toy_texts(10, seed=9)]
    together = tagger.potentials(texts)
    for one, tagged in zip(texts, together, strict=True):
        np.testing.assert_array_equal(tagger.potentials([one])[0].potentials.emissions, tagged.potentials.emissions)


def test_one_class_only() -> None:
    texts = [text(f"Take bako{i}mol now .", (5, 5 + len(f"bako{i}mol"), "Drug")) for i in range(12)]
    tagger = LinearTagger.of(learn(texts))
    assert tagger.space.classes == ("Drug",)
    assert entity_f1(tagger, texts) == 1.0


def test_a_class_with_one_example_does_no_harm() -> None:
    texts = [*toy_texts(40, seed=1), text("Dr Zed came .", (3, 6, "Doctor"))]
    learnt = learn(texts)
    assert learnt.space.classes == ("Doctor", "Drug", "Symptom")
    counter = EntityCounter()
    test = toy_texts(100, seed=2)
    tagger = LinearTagger.of(learnt)
    for one, tagged in zip(test, tagger.potentials([t.text for t in test]), strict=True):
        found = tagger.space.spans(conformal.kbest(tagged.potentials, 1).labels[0])
        counter.add([(tagged.tokens[a].start, tagged.tokens[b - 1].end, w) for a, b, w in found], one.spans)
    assert counter.total.f1 > 0.8


def test_a_class_without_an_example_is_never_likely() -> None:
    learnt = learn(toy_texts(40, seed=1), space=LabelSpace(["Drug", "Nobody", "Symptom"]))
    tagger = LinearTagger.of(learnt)
    begin = tagger.space.begin("Nobody")
    for tagged in tagger.potentials([t.text for t in toy_texts(50, seed=2)]):
        best = conformal.kbest(tagged.potentials, 1).labels[0]
        assert not np.isin(best, [begin, begin + 1]).any()


def test_contradictory_duplicates_end_in_doubt_and_never_judge_each_other() -> None:
    yes = [text("Take bakomol now .", (5, 12, "Drug"))] * 10
    no = [text("Take bakomol now .")] * 10
    chains = build_chains([*yes, *no], LabelSpace(["Drug"]), base=None, languages=())
    assert len(set(chains.groups.tolist())) == 1
    tagger = LinearTagger.of(learn([*yes, *no, *toy_texts(20, seed=1)]))
    p = tagger.potentials(["Take bakomol now ."])[0].potentials
    best = conformal.kbest(p, 1).log_probabilities[0]
    assert best < np.log(0.95)


def test_overlapping_labels_leave_out_their_sentence_alone() -> None:
    both = text("Bako caused limu. Vito slept well.", (0, 11, "Symptom"), (5, 16, "Drug"), (18, 22, "Person"))
    chains = build_chains([both], LabelSpace(["Drug", "Person", "Symptom"]), base=None, languages=["en"])
    assert len(chains.groups) == 1
    assert dict(chains.left_out) == {"it overlaps another span": 1}
    assert chains.examples.labels.tolist() == [3, 0, 0, 0]


def test_of_labels_within_one_another_the_outermost_is_learnt() -> None:
    both = text("Bako caused limu. Vito slept well.", (0, 4, "Drug"), (0, 11, "Symptom"), (18, 22, "Person"))
    chains = build_chains([both], LabelSpace(["Drug", "Person", "Symptom"]), base=None, languages=["en"])
    assert dict(chains.left_out) == {}
    assert chains.examples.labels.tolist() == [5, 6, 0, 0, 3, 0, 0, 0]


def test_a_label_across_sentences_joins_them() -> None:
    words = "Bako read it. Who? What? He slept."
    apart = build_chains([text(words, (0, 4, "Name"))], LabelSpace(["Name"]), base=None, languages=["en"])
    joined = build_chains(
        [text(words, (0, 4, "Name"), (14, 24, "Name"))], LabelSpace(["Name"]), base=None, languages=["en"]
    )
    assert len(joined.groups) == len(apart.groups) - 1
    assert joined.examples.labels.tolist() == [1, 0, 0, 0, 1, 2, 2, 2, 0, 0, 0]


def test_nothing_to_learn_from_is_said() -> None:
    with pytest.raises(InvalidTraining, match="expected at least one labelled entity, got none"):
        learn([])
    with pytest.raises(InvalidTraining, match="expected at least one labelled entity, got none"):
        learn([text("Nothing here .")])
    with pytest.raises(InvalidTraining, match="expected at least one sentence"):
        learn([text("Bakomol", (0, 3, "Drug"))])
    with pytest.raises(InvalidTraining, match="expected penalties"):
        Recipe(sparse=0.0)


def test_few_texts_are_learnt_from_without_any_held_out() -> None:
    learnt = learn([text("Take bakomol now .", (5, 12, "Drug"))])
    assert (learnt.report.folds, learnt.report.held_f1) == (0, None)
    assert entity_f1(LinearTagger.of(learnt), [text("Take bakomol now .", (5, 12, "Drug"))]) in {0.0, 1.0}


def test_ten_thousand_labels_in_one_task() -> None:
    parts = [f"Then they took ba{'kolimu'[i % 5 :]}mol again." for i in range(10_000)]
    spans, at = [], 0
    for part in parts:
        word = part.split()[3]
        begin = at + part.index(word)
        spans.append(TextSpan(begin, begin + len(word), "Drug"))
        at += len(part) + 1
    whole = LabelledText(" ".join(parts), tuple(spans))
    learnt = learn([whole], recipe=Recipe(steps=15))
    assert learnt.report.sentences == 10_000
    assert learnt.report.held_f1 == 1.0
    tagger = LinearTagger.of(learnt)
    assert entity_f1(tagger, [text("Then they took bazimol again.", (15, 22, "Drug"))]) == 1.0


def test_a_class_that_the_network_knows_is_known_from_the_first_label() -> None:
    base = load_base("bundled").tagger
    one = text("Angela Merkel met the press in Berlin.", (0, 13, "PER"), (31, 37, "LOC"))
    learnt = learn([one], base=base, languages=["en"])
    assert learnt.report.uses_base
    tagger = LinearTagger.of(learnt, base=base, languages=["en"])
    new = text("Emmanuel Macron lives in Paris.", (0, 15, "PER"), (25, 30, "LOC"))
    assert entity_f1(tagger, [new]) == 1.0
    other = text("Yesterday Paris was where the young Emmanuel Macron lived.", (10, 15, "LOC"), (36, 51, "PER"))
    assert entity_f1(tagger, [other]) > entity_f1(LinearTagger.of(learn([one])), [other])
