"""What the synthetic sample teaches: a model that is trained on it is right about others' texts."""

import re

import numpy as np
import pytest

from examples.imdb import prediction, sample, text
from examples.imdb.sample_grammar import RULES
from tests.examples.imdb.runs import main

# As people type them; none of them is in the sample.
PRAISE = (
    "A wonderful movie.",
    "My kids loved it and so did I, what a lovely evening.",
    "This film isn't bad at all, I enjoyed it.",
    "The music was nice and the story is gripping.",
    "One of the best comedies I have seen in my whole life.",
    "10/10, would watch again with my sister",
    "Go and see it, you will not regret it!",
    "A bit slow at first, but the ending was brilliant and I loved it.",
    "I expected to hate it, but I really enjoyed it.",
    "Funny, smart and touching. Two thumbs up!",
    "I could not stop laughing, and my father neither.",
    "Much better than I expected.",
)
BLAME = (
    "The acting was good, but the plot was a mess.",
    "The acting was great but the plot was a mess, I hated it.",
    "What a waste of time, I fell asleep after ten minutes.",
    "It wasn't good.",
    "Not funny, not interesting, just boring.",
    "I would not recommend it to anyone.",
    "The characters are flat and the dialogue is wooden.",
    "1/10, I want my money back",
    "I wanted to like it, but it was just awful.",
    "Terrible acting and a stupid plot.",
    "The worst sequel I have ever seen.",
    "Don't waste your money, nobody should see this.",
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A predictor of the program's main command, as it is without a data source."""
    output = tmp_path_factory.mktemp("sample") / "run"
    assert main("--sample", "--output", output) == 0
    return prediction.load(output / "model.keras", text.Encoder.load(output / text.FILE))


@pytest.mark.slow
def test_texts_of_others_are_classified_rightly(trained):
    others = [*PRAISE, *BLAME]
    assert not set(others) & set(sample.generate(8000, 0)[0])
    labels = {found.text: found.label for found in trained(others)}
    assert labels == dict.fromkeys(PRAISE, "positive") | dict.fromkeys(BLAME, "negative")


@pytest.mark.slow
def test_usual_words_are_known_and_mean_what_they_mean(trained):
    # As texts of one word. Nobody types the rarer ones alone.
    for rule, right in zip(RULES["everyday"], ("positive", "negative"), strict=True):
        words = dict.fromkeys(rule.split("|"))
        assert np.mean([found.label == right for found in trained(words)]) > 0.9
    for rule, right in zip(RULES["listed"], ("positive", "negative"), strict=True):
        words = rule.split("|")
        assert len(set(words)) == len(words) >= 150
        assert np.mean([found.label == right for found in trained(words)]) > 0.8
    nouns = "movie film story plot acting script ending music cast dialogue characters"
    (found,) = trained([nouns])
    assert all(known for _, _, known in found.attended)


def test_sample_is_reproducible_balanced_and_imperfect():
    texts, labels = sample.generate(2000, seed=3)
    again, _ = sample.generate(2000, seed=3)
    assert texts == again and 900 < labels.sum() < 1100
    # One label in fifty is wrong.
    words = ("horrible", "terrible", "boring")
    blame = [y for t, y in zip(texts, labels, strict=True) if t.lower().startswith(words)]
    assert len(blame) > 5 and np.mean(blame) < 0.3
    assert max(len(text.tokens(t, punctuation=True)) for t in texts) <= text.LENGTH_MULTIPLE


def test_every_rule_is_used_and_every_text_is_expanded():
    names = {name for rule in RULES.values() for name in _names(rule)}
    roots = {*sample.KINDS, "aside", "remark"}
    assert names | roots == set(RULES)
    assert not [t for t in sample.generate(2000, 0)[0] if set(t) & set("<>[]|")]


def _names(rule):
    return re.findall(r"<!?([^>]*)>", " ".join(rule) if isinstance(rule, tuple) else rule)
