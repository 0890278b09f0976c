"""What `python -m tests.doctests` takes for the output that a page shows."""

import pytest

from tests import doctests


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("comment", "printed", "shown"),
    [
        ("(2, 3) [5 5]", "(2, 3) tf.Tensor([5 5], shape=(2,), dtype=int32)", True),
        ("(2, 3)", "torch.Size([2, 3])", True),
        ("(2, 3): rows and columns", "(2, 3)", True),
        ("(2, 3)", "(2, 4)", False),
        ("(2, 3)", "(2, 3, 4)", False),
        ("0.996", "0.99599999", True),
        ("0.996", "0.99499", False),
        ("plain: few scores; …", "plain: few scores; O(T)", True),
        ("True", "False", False),
        ("anything", "", False),
    ],
)
def test_a_comment_shows_what_is_printed(comment, printed, shown):
    assert doctests.is_shown(comment, printed) == shown


@pytest.mark.any_backend
def test_a_page_that_shows_something_else_fails(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```python\nfor i in (1, 2):\n    print(i)  # 1, 2\nprint(3)  # 4\n```\n")
    lines = {}
    names = {"print": doctests.recorder(page, lines)}
    for _, program in doctests.programs(page):
        exec(program, names)
    (wrong,) = doctests.wrong_comments(page, lines)
    assert wrong.startswith("4: shown '4'")
