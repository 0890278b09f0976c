"""BLEU of a run's translations of the test sentences, as papers on Multi30k have it.

    python -m benchmarks.tokenized_bleu runs/en-de --data-dir multi30k

Of lowercased, normalized and tokenized text (sacremoses), as that of Multi30k is usually prepared.
`examples.translation` reports sacreBLEU's default, cased and detokenized, which is another number.
"""

import argparse
from pathlib import Path

import sacrebleu
import sacremoses

from examples import pairs, shared


def tokenized(sentences, language):
    """Sentences in lowercase with Moses's normal punctuation, and spaces between their tokens."""
    normalizer = sacremoses.MosesPunctNormalizer(lang=language)
    tokenizer = sacremoses.MosesTokenizer(lang=language)
    return [
        tokenizer.tokenize(normalizer.normalize(sentence.lower()), escape=False, return_str=True)
        for sentence in sentences
    ]


def score(translations, references, language):
    """The score, and sacreBLEU's signature."""
    metric = sacrebleu.BLEU(tokenize="none", force=True)
    found, wanted = (tokenized(side, language) for side in (translations, references))
    return metric.corpus_score(found, [wanted]).score, str(metric.get_signature())


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished run of examples.translation")
    parser.add_argument("--data-dir", type=Path, help="of its pairs; default: the sample")
    options = parser.parse_args(argv)
    figures = shared.read_figures(options.run, "examples.translation")
    languages = figures["languages"]
    _, parts = pairs.load(options.data_dir, *languages, sample=options.data_dir is None)
    settings = figures["settings"]
    parts = pairs.limited(parts, settings["limit"], settings["seed"])
    translations = shared.read_text(options.run / "test.txt").split("\n")[:-1]
    print(*score(translations, parts["test"][1], languages[1]))


if __name__ == "__main__":
    main()
