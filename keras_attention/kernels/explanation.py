"""What `ops.explain` says of a problem, in words."""

from keras_attention.kernels import plans, strategies
from keras_attention.sizes import known


def mask(spec):
    """What `semantics.mask` combines, without computing it."""
    found = []
    for array in spec.masks:
        axis = "keys" if array.shape[2] == 1 else "queries" if array.shape[3] == 1 else "pairs"
        found.append(f"{axis} {tuple(array.shape)}")
    if spec.pattern is not None:
        found.append(f"pattern {spec.pattern!r}")
    if spec.segment_ids is not None:
        found.append("segments")
    return "mask: " + " and ".join(found) if found else "no mask"


def strategy(spec, query, key, value):
    """How a problem in tiles is computed: what `strategies` decides."""
    sizes = plans.Sizes.of(query, key)
    chosen = strategies.choose(spec, query, key, value, sizes)
    plan = plans.of(chosen, spec, sizes)
    by = "by whole rows of keys" if chosen.whole_rows else "by blocks of keys"
    if plan.single:
        return f"one tile, {by}, whose weights are stored for the gradient"
    counts = plan.chunks, plan.query_blocks, plan.key_blocks
    several = f"{counts[0] * counts[1] * counts[2]} tiles" if known(*counts) else "tiles"
    each = ", ".join(
        f"{size if known(size) else 'some'} {what}"
        for size, what in (
            (plan.batch, "sequences"),
            (plan.heads, "heads"),
            (plan.queries, "queries"),
            (plan.keys, "keys"),
        )
    )
    return f"{several} of {each}, {by}, whose weights the gradient computes again"
