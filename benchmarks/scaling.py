"""What devices must tell each other in a training step: `python -m benchmarks.scaling`.

Formulae for a decoder-only Transformer, in floating-point operations and bytes that a device sends,
of three ways to share a step among n devices, and what share of a device's time is left for
computing. `tests/distribution/test_plan.py` compares the bytes with the collectives of
programs that JAX compiles for eight virtual devices. No time in here was measured: rates are those
of the command line.
"""

import argparse
import dataclasses

# An all-reduce of b bytes sends each device's share around twice (Thakur et al. 2005, section 4.5):
# 2 · b · (n − 1) / n.
ALL_REDUCE = 2


@dataclasses.dataclass(frozen=True)
class Size:
    """A decoder-only Transformer and its batch: multi-head attention, two matrices of feed-forward.

    `batch` sequences of `length` tokens are one step, of all devices.
    """

    layers: int
    dim: int
    heads: int
    vocabulary: int = 50257
    batch: int = 512
    length: int = 2048

    @property
    def block_parameters(self):
        """Of one block's matrices: four of attention, and two of four times the width."""
        return 12 * self.dim**2

    @property
    def parameters(self):
        """Of all matrices, embeddings included, which are tied."""
        return self.layers * self.block_parameters + self.vocabulary * self.dim

    @property
    def tokens(self):
        """Of a step."""
        return self.batch * self.length

    @property
    def operations(self):
        """Of a training step: 2 a parameter and token forward and 4 backward, and the scores.

        Causal masks halve the scores, which are counted whole.
        """
        scores = 12 * self.layers * self.tokens * self.length * self.dim
        return 6 * self.parameters * self.tokens + scores

    def of_long_sequences(self):
        """As many tokens in eight sequences."""
        return dataclasses.replace(self, batch=8, length=self.tokens // 8)


SIZES = {
    "0.1 billion": Size(12, 768, 12),
    "1.3 billion": Size(24, 2048, 16),
    "13 billion": Size(40, 5120, 40),
}


def data_parallel(size, devices, wide=4):
    """Bytes that a device sends in a step: the gradients of all weights, summed."""
    return ALL_REDUCE * wide * size.parameters * (devices - 1) / devices


def tensor_parallel(size, devices, narrow=2, sums=4):
    """The same, of activations: `sums` of (tokens, dim) a block, two forward and two backward."""
    each = narrow * size.tokens * size.dim * (devices - 1) / devices
    return ALL_REDUCE * size.layers * sums * each


def sequence_parallel(size, devices, narrow=2, wide=4):
    """The same, of a ring of keys and values: they travel forward, and backward with gradients.

    The weights are whole on every device: their gradients are summed too.
    """
    part = size.tokens * size.dim / devices
    ring = size.layers * devices * part * (4 * narrow + 2 * wide)
    return ring + data_parallel(size, devices, wide)


WAYS = {"data": data_parallel, "tensor": tensor_parallel, "sequence": sequence_parallel}


def share_computing(size, devices, way, rate, bandwidth):
    """The share of a step in which a device computes, if it never does both at once.

    `rate` is in operations a second, `bandwidth` in bytes a second that a device sends.
    """
    computing = size.operations / devices / rate
    telling = WAYS[way](size, devices) / bandwidth if devices > 1 else 0.0
    return computing / (computing + telling)


def table(rate, bandwidth, devices=(1, 8, 64, 512)):
    """Markdown: gigabytes that a device sends in a step, and the share of its time left."""
    lines = [
        "| parameters, operations a step | devices | data | tensor | sequence |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, given in SIZES.items():
        for count in devices:
            cells = []
            for way, sent in WAYS.items():
                size = given.of_long_sequences() if way == "sequence" else given
                if count == 1:
                    cells.append("0 GB, 1.00")
                elif way == "tensor" and size.heads % count:
                    cells.append("heads do not divide")
                else:
                    share = share_computing(size, count, way, rate, bandwidth)
                    cells.append(f"{sent(size, count) / 1e9:.3g} GB, {share:.2f}")
            what = f"{name}, {given.operations:.2g}"
            lines.append(f"| {what} | {count} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--rate", type=float, default=4e14, help="operations a second of a device")
    parser.add_argument("--bandwidth", type=float, default=4e11, help="bytes a second it sends")
    options = parser.parse_args()
    print(f"{options.rate:.2g} operations and {options.bandwidth:.2g} bytes a second and device\n")
    print(table(options.rate, options.bandwidth))


if __name__ == "__main__":
    main()
