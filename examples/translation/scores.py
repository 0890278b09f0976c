"""How good translations are: BLEU, in the two ways that papers report it."""

import sacrebleu
import sacremoses


def scores(translations, references, language):
    """Both BLEUs of some translations, and what sacreBLEU says of how they were computed.

    Args:
        translations, references: lists of sentences.
        language: of both, for the rules of punctuation.

    Returns:
        `{"bleu", "tokenized_bleu"}`, numbers from 0 to 100, and `{"bleu", "tokenized_bleu"}`, the
        signatures. The first is cased and detokenized, as sacreBLEU has it by default. The second
        is of lowercased, normalized and tokenized text, as the scripts of Multi30k prepare it and
        as papers that train on such text measure it. One is not comparable with the other.
    """
    metrics = {
        "bleu": sacrebleu.BLEU(),
        "tokenized_bleu": sacrebleu.BLEU(tokenize="none", force=True),
    }
    prepared = {
        "bleu": (translations, references),
        "tokenized_bleu": (tokenized(translations, language), tokenized(references, language)),
    }
    found = {
        name: metric.corpus_score(prepared[name][0], [prepared[name][1]]).score
        for name, metric in metrics.items()
    }
    return found, {name: str(metric.get_signature()) for name, metric in metrics.items()}


def tokenized(sentences, language):
    """Sentences in lowercase with Moses's normal punctuation, and spaces between their tokens."""
    normalizer = sacremoses.MosesPunctNormalizer(lang=language)
    tokenizer = sacremoses.MosesTokenizer(lang=language)
    return [
        tokenizer.tokenize(normalizer.normalize(sentence.lower()), escape=False, return_str=True)
        for sentence in sentences
    ]
