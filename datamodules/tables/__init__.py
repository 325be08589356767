"""Tables of labels: text files that name their source in the first lines."""

from pathlib import Path


def read_table(name: str) -> list[tuple[str, ...]]:
    """The rows of a table in this folder, by its name."""
    lines = (Path(__file__).parent / f"{name}.txt").read_text().splitlines()
    return [tuple(cell.strip() for cell in line.split(",")) for line in lines if not line.startswith("#")]
