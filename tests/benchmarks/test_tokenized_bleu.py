"""BLEU of lowercased, normalized and tokenized translations of a run."""

import json

import numpy as np
import pytest

for package in ("sacrebleu", "sacremoses"):
    pytest.importorskip(package)

tokenized_bleu = pytest.importorskip("benchmarks.tokenized_bleu")
pairs = pytest.importorskip("examples.pairs")
pytestmark = pytest.mark.any_backend


def test_case_and_quotation_marks_do_not_count():
    references = ['Ein Mann sagt: "Hallo."', "Die Frau läuft schnell über die Straße."]
    other = ["ein mann sagt: „Hallo.“", "die frau läuft schnell über die straße."]
    score, signature = tokenized_bleu.score(other, references, "de")
    np.testing.assert_allclose(score, 100)
    assert "tok:none" in signature
    assert tokenized_bleu.tokenized(references[:1], "de") == ['ein mann sagt : " hallo . "']
    assert tokenized_bleu.tokenized(["Olá, Mundo."], "xx") == ["olá , mundo ."]


def test_of_a_run(tmp_path, capsys):
    settings = {"limit": 5, "seed": 3}
    parts = pairs.limited(pairs.load(sample=True)[1], **settings)
    figures = {"program": "examples.translation", "languages": ["en", "de"], "settings": settings}
    (tmp_path / "figures.json").write_text(json.dumps({**figures, "finished": True, "epochs": []}))
    text = "".join(f"{sentence.lower()}\n" for sentence in parts["test"][1])
    (tmp_path / "test.txt").write_text(text, encoding="utf-8")
    tokenized_bleu.main([str(tmp_path)])
    np.testing.assert_allclose(float(capsys.readouterr().out.split()[0]), 100)
