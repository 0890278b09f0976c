"""The table of `docs/models.md`, from what the tests of this folder measure on each backend.

    KERAS_BACKEND=jax python -m pytest tests/convert/huggingface -m "" --junitxml=jax.xml
    python -m tests.convert.huggingface.table [--each] tensorflow.xml jax.xml torch.xml

A row is a family: the largest difference of its states and logits from those of `transformers`, and
a check mark where the tests of all its architectures passed. `--each` prints a row for each
architecture, with the figures of all files.
"""

import sys
from xml.etree import ElementTree

from keras_attention.convert.huggingface.architectures import ARCHITECTURES

# Figures of tests, and what heads them.
COLUMNS = {
    "states": "states",
    "logits": "logits",
    "tokens": "greedy tokens",
    "beams": "beams",
    "saved": "`.keras`",
    "back": "written back",
}

# Architectures that are alike, as the page lists them.
FAMILIES = {
    "GPT-2, GPT-NeoX (Pythia), GPT-J, gpt-oss, OPT": "gpt2 gpt_neox gptj gpt_oss opt",
    "Llama 2 and 3, Mistral, Mixtral, SmolLM3, StarCoder2": (
        "llama mistral mixtral smollm3 starcoder2"
    ),
    "Qwen 2 and 3, Qwen3-Next": "qwen2 qwen3 qwen2_moe qwen3_moe qwen3_next",
    "OLMo 2 and 3, OLMoE": "olmo2 olmo3 olmoe",
    "Granite, StableLM": "granite stablelm",
    "DeepSeek-V3, Moonlight": "deepseek_v3",
    "Gemma 1 to 3 (text), EmbeddingGemma": "gemma gemma2 gemma3_text",
    "Phi 1 to 3": "phi phi3",
    "BLOOM, Command R, R+ and R7B, Falcon, GLM-4 (2025), MPT, Nemotron": (
        "bloom cohere cohere2 falcon glm4 mpt nemotron"
    ),
    "BERT, ALBERT, BigBird, DistilBERT, ELECTRA, MPNet": (
        "bert albert big_bird distilbert electra mpnet"
    ),
    "RoBERTa, XLM-R, CamemBERT, Longformer": "roberta xlm-roberta camembert longformer",
    "DeBERTa 2 and 3, ModernBERT": "deberta-v2 modernbert",
    "BART, mBART, Marian, NLLB, Pegasus": "bart mbart marian m2m_100 pegasus",
    "T5, 1.1 too": "t5",
    "mT5, UMT5": "mt5 umt5",
    "Whisper": "whisper",
    "ViT, DeiT, DINOv2, Swin 1 and 2": "vit deit dinov2 swin swinv2",
    "CLIP and SigLIP, a tower each": (
        "clip_text_model clip_vision_model siglip_text_model siglip_vision_model"
    ),
}


def figures(path):
    """Of each architecture and column, the largest figure in a file of JUnit."""
    root = ElementTree.parse(path).getroot()
    failed = [case for kind in ("failure", "error") for case in root.iter(kind)]
    if failed:
        raise SystemExit(f"{path}: {len(failed)} tests failed")
    found = {}
    for given in root.iter("property"):
        key = tuple(given.get("name").split())
        found[key] = max(float(given.get("value")), found.get(key, 0.0))
    return found


def _text(figure):
    return f"{figure:.0f}" if figure == int(figure) else f"{figure:.1e}".replace("e-0", "e-")


def each(measured):
    """Rows of architectures, the first of heads, with the figures of all files."""
    yield "`model_type`", *COLUMNS.values()
    for kind in ARCHITECTURES:
        found = [[file.get((kind, column)) for file in measured] for column in COLUMNS]
        cells = [["–" if x is None else _text(x) for x in values] for values in found]
        yield f"`{kind}`", *(" / ".join(x if len(set(x)) > 1 else x[:1]) for x in cells)


def families(measured):
    """Rows of families, the first of heads."""
    yield "family", "`model_type`", "largest difference", "same tokens", "saved, written back"
    for family, names in FAMILIES.items():
        kinds = names.split()

        def found(*columns, kinds=kinds):
            keys = [(kind, column) for kind in kinds for column in columns]
            return [file[key] for file in measured for key in keys if key in file]

        shown = ", ".join(f"`{kind}`" for kind in kinds)
        worst = _text(max(found("states", "logits")))
        yield family, shown, worst, "✓" if found("tokens") else "", "✓"


if __name__ == "__main__":
    made = each if sys.argv[1] == "--each" else families
    heads, *rows = made([figures(path) for path in sys.argv[1:] if path != "--each"])
    for row in (heads, ["---"] * len(heads), *rows):
        print(f"| {' | '.join(row)} |")
