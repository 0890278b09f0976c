"""Nothing public is missing, and what entries and places refuse is what is listed here."""

import subprocess
import sys

import keras
import pytest

from tests.contract import places, registry, relations_of_layers
from tests.contract.test_contract import RELATIONS, cases

IN_TIME = {"GatedDeltaNet", "GatedDeltaNet-convolved", "GatedLinearAttention", "Retention"}
LOW_RANK = {n for n in registry.MECHANISMS if n.startswith(("Linformer", "Nystrom"))}
BLOCKS = {"NativeSparseAttention"}
LONGFORMER = {"LongformerAttention", "LongformerAttention-global"}
CELLS = {n for n, e in registry.MECHANISMS.items() if e.traits.cells}
# Mechanisms that do not take an argument of a call.
REFUSED = {
    "positions": IN_TIME | LOW_RANK | LONGFORMER | BLOCKS,
    "segment_ids": IN_TIME | LOW_RANK | BLOCKS | {"LocalAttention-predictive"},
    "attention_mask": IN_TIME | LOW_RANK | BLOCKS,
    "scores": IN_TIME | LOW_RANK | BLOCKS,
    "use_causal_mask": LOW_RANK | LONGFORMER,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mechanisms_refuse(name):
    found = {n for n, e in registry.MECHANISMS.items() if not getattr(e.traits, name)}
    assert found == REFUSED[name]


def test_cells_of_a_grid_stay_where_they_are():
    """As slots say of themselves, for stacks."""
    found = set()
    for name, entry in registry.MECHANISMS.items():
        layer = entry.make()
        slots = layer.position, layer.pattern
        found |= {name} if not all(getattr(slot, "counts", True) for slot in slots) else set()
    assert found == CELLS and len(CELLS) == 8


def test_what_has_no_cache():
    found = {n for n, e in registry.MECHANISMS.items() if places.refuses_pieces(e, "alone")}
    later = LOW_RANK | LONGFORMER
    length = {"position-Rotary-dynamic", "position-Rotary-longrope"}
    assert found == later | length | {
        "Attention-raw", "LocalAttention-predictive", "score-Location",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(registry.NO_CELL))
def test_what_has_no_cell(name):
    with pytest.raises(ValueError, match="An AttentionCell"):
        places.Subject(registry.ENTRIES[name], "cell").symbolic()


@pytest.mark.parametrize("name", sorted(registry.NO_MEMORY))
def test_what_has_no_cache_of_a_context(name):
    with pytest.raises(ValueError, match="cannot have a cache"):
        places.subject(registry.ENTRIES[name], "context").from_memory()


def test_every_entry_is_in_a_relation():
    found = {tuple(map(str, case.values)) for case in cases()}
    assert {entry for *_, entry in found} == set(registry.ENTRIES)
    # On PyTorch, compiling takes most of a minute a layer.
    elsewhere = {"program"} if keras.config.backend() == "torch" else set()
    assert {relation for relation, *_ in found} == set(RELATIONS) - elsewhere


LOADER = """
import pathlib, sys
import keras_attention
import keras, numpy as np
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.keras")):
    saved = np.load(path.with_suffix(".npz"))
    arrays = [saved[name] for name in saved.files]
    *inputs, expected = arrays
    outputs = keras.saving.load_model(path)(inputs if len(inputs) > 1 else inputs[0])
    found = keras.ops.convert_to_numpy(keras.tree.flatten(outputs)[0])
    if not np.allclose(found, expected, rtol=0, atol=1e-5 * max(1, abs(expected).max())):
        print("unlike", path.name)
    print("loaded", path.name)
"""


def test_files_load_in_another_process():
    """Of every entry, whichever were saved before."""
    relation = RELATIONS["saved"]
    paths = relations_of_layers.FOLDER
    for entry in registry.ENTRIES.values():
        there = (paths / f"{entry}-alone.npz").exists()
        if relation.applies(entry, "alone") and not there:
            relation(entry, "alone")
    command = [sys.executable, "-c", LOADER, str(paths)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr[-3000:]
    lines = process.stdout.split("\n")[:-1]
    assert lines == [f"loaded {path.name}" for path in sorted(paths.glob("*.keras"))]
