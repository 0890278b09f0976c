"""The reviews of the example: their parts, and the sample that is generated."""

import numpy as np
import pytest

from examples import imdb_reviews
from examples.imdb_reviews import Reviews
from tests.examples.imdb.runs import main


def test_limit_and_split():
    reviews = Reviews(list("abcdefghij"), np.array([0] * 7 + [1] * 3))
    limited = reviews.limited(4, seed=0)
    assert limited.labels.tolist() == [0, 0, 1, 1]
    assert limited.texts == reviews.limited(4, seed=0).texts
    rest, held_out = reviews.split(0.2, seed=0)
    assert len(held_out) == 2 and sorted(rest.texts + held_out.texts) == reviews.texts
    assert [len(part) for part in reviews.split(0.99, seed=0)] == [1, 9]
    assert [len(part) for part in limited.limited(2, 0).split(0.8, seed=0)] == [1, 1]


def test_neighbors_are_held_out_together():
    reviews = Reviews([str(i) for i in range(1000)], np.arange(1000) % 2)
    _, held_out = reviews.split(0.2, seed=0)
    numbers = sorted(int(text) for text in held_out.texts)
    assert len(numbers) == 200
    assert all(number // 10 * 10 + i in numbers for number in numbers for i in range(10))


def test_sample_is_reproducible_balanced_and_imperfect():
    texts, labels = imdb_reviews.generate(2000, seed=3)
    again, _ = imdb_reviews.generate(2000, seed=3)
    assert texts == again and 900 < labels.sum() < 1100
    assert len(set(texts)) > 1800 and not [text for text in texts if set(text) & set("{}|")]
    # One label in fifty is wrong.
    words = ("horrible", "terrible", "boring", "it was horrible", "what a waste")
    blame = [y for t, y in zip(texts, labels, strict=True) if t.lower().startswith(words)]
    assert len(blame) > 5 and np.mean(blame) < 0.3


# As people type them; none of them is in the sample.
PRAISE = (
    "A wonderful movie.",
    "This film isn't bad at all, I enjoyed it.",
    "The music was nice and the story is gripping.",
    "One of the best comedies I have seen in my whole life.",
    "10/10, would watch again with my sister",
    "Go and see it, you will not regret it!",
    "Funny, smart and touching. Two thumbs up!",
    "Much better than I expected.",
)
BLAME = (
    "The acting was good, but the plot was a mess.",
    "What a waste of time, I fell asleep after ten minutes.",
    "It wasn't good.",
    "It was not good.",
    "Not funny, not interesting, just boring.",
    "I would not recommend it to anyone.",
    "1/10, I want my money back",
    "Terrible acting and a stupid plot.",
    "The worst sequel I have ever seen.",
)


@pytest.mark.slow
def test_what_the_sample_teaches(tmp_path, capsys):
    assert main("--sample", "--output", tmp_path / "run") == 0
    capsys.readouterr()
    assert main("predict", tmp_path / "run", *PRAISE, *BLAME) == 0
    found = [line.split()[0] for line in capsys.readouterr().out.splitlines()[::2]]
    assert found == ["positive"] * len(PRAISE) + ["negative"] * len(BLAME)
