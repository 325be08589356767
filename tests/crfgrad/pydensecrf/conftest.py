"""These tests choose their backend themselves."""

import pytest

collect_ignore = ["scripts"]  # they import pydensecrf, and run in processes of their own


@pytest.fixture(autouse=True)
def backend() -> str:
    """In place of both, one after the other."""
    return "auto"
