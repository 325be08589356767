"""The examples in the documentation run, and print what it says."""

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(
    "page", ["README.md", "docs/extending.md", "docs/dense_crf.md", "docs/tracing.md", "docs/energy_loss.md"]
)
def test_examples_print_what_the_page_says(page: str) -> None:
    examples = EXAMPLE.findall((ROOT / page).read_text())
    assert examples
    for code, expected in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), {})
        assert printed.getvalue() == expected


def test_links_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "experiments" / "results").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
