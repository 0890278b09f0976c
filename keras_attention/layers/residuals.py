"""The topology of a block: how branches, norms and residuals are put together.

Each function takes x, the branches by name in their order, functions of x, and `norms`, functions
by the names of branches: `name` is what stands before a branch or, in `post`, after the sum,
`name_output` what stands after a branch in `sandwich`. `keep` is applied to a branch before it is
added: dropout.
"""


def post(x, branches, norms, keep):
    """`x = norm(x + branch(x))` (Vaswani et al. 2017)."""
    for name, branch in branches.items():
        x = norms[name](x + keep(branch(x)))
    return x


def pre(x, branches, norms, keep):
    """`x = x + branch(norm(x))` (Xiong et al. 2020)."""
    for name, branch in branches.items():
        x = x + keep(branch(norms[name](x)))
    return x


def sandwich(x, branches, norms, keep):
    """`x = x + norm'(branch(norm(x)))` (Ding et al. 2021, section 3.2; Gemma 2)."""
    for name, branch in branches.items():
        x = x + keep(norms[f"{name}_output"](branch(norms[name](x))))
    return x


def parallel(x, branches, norms, keep):
    """`x = x + branch_1(norm_1(x)) + branch_2(norm_2(x))` (Wang & Komatsuzaki 2021, GPT-J)."""
    normalized = {}
    for name in branches:
        # One norm for several branches is computed once.
        norm = norms[name]
        if norm not in normalized:
            normalized[norm] = norm(x)
    for name, branch in branches.items():
        x = x + keep(branch(normalized[norms[name]]))
    return x


RESIDUALS = {"post": post, "pre": pre, "sandwich": sandwich, "parallel": parallel}
