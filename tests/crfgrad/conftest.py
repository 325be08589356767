"""Every test of the library runs on both backends."""

from collections.abc import Iterator

import pytest

from crfgrad import use_backend


@pytest.fixture(autouse=True, params=["torch", "auto"])
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend of the test."""
    with use_backend(request.param):
        yield request.param
