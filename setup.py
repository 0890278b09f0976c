"""Packaging. `pyproject.toml` names the build system and configures the tools."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
VERSION = re.search(
    r'__version__ = "(.+)"', (HERE / "keras_attention/version.py").read_text(encoding="utf-8")
).group(1)

EXAMPLES = [
    "filelock>=3.12",
    "tensorflow-datasets>=4.9.4",
    "importlib_resources",
    "matplotlib>=3.7",
    "pillow",
    "scikit-learn",
    "statsmodels>=0.14",
    "tokenizers>=0.22",
]
TRANSLATION = ["sacrebleu>=2.4"]
LANGUAGE_MODEL = ["safetensors>=0.5"]

setup(
    name="keras-attention-layers",
    version=VERSION,
    description="Attention layers for Keras 3, on TensorFlow, JAX and PyTorch",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["keras_attention", "keras_attention.*"]),
    package_data={
        "keras_attention": ["py.typed"],
        "keras_attention.visualization": ["page.html", "page.css", "page.js"],
    },
    install_requires=["keras>=3.13", "numpy"],
    extras_require={
        "tensorflow": ["tensorflow>=2.20"],
        "jax": ["jax"],
        "torch": ["torch"],
        "visualization": ["matplotlib>=3.7"],
        "inspection": ["scipy"],
        "examples": EXAMPLES,
        "translation": [*EXAMPLES, *TRANSLATION],
        "language-model": [*EXAMPLES, *LANGUAGE_MODEL],
        "huggingface": ["safetensors>=0.5"],
        "test": [
            "transformers>=5",
            "pytest>=8",
            "pytest-xdist>=3.5",
            "hypothesis>=6",
            "allpairspy>=2.5",
            "ruff>=0.6",
            "mypy>=1.18",
            "playwright>=1.40",
            "keras-nlp",
            *EXAMPLES,
            *TRANSLATION,
            *LANGUAGE_MODEL,
            "sacremoses",
            "scipy",
        ],
        "docs": [
            "mkdocs>=1.6,<2",
            "mkdocs-material>=9.7,<10",
            "mkdocstrings>=1.0,<2",
            "mkdocstrings-python>=2.0,<3",
            "latex2mathml>=3.77,<4",
            "ruff>=0.6",
            "matplotlib>=3.7",
        ],
        "export": ["onnx>=1.17", "onnxruntime>=1.20", "tf2onnx>=1.16.1", "ai-edge-litert>=2.0"],
        "notebooks": [*EXAMPLES, *TRANSLATION, "ipykernel", "nbclient", "nbformat"],
        "benchmarks": ["keras-nlp", "matplotlib>=3.7", "scikit-learn"],
    },
    classifiers=[
        "Intended Audience :: Developers",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
