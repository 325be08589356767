"""Which runs there are, where they are, and the arguments of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.ablation.rows import GAUSSIAN, NETWORK, Row
from experiments.ablation.settings import differences, effective
from experiments.files import plain, read_json

# a line for each run instead; ddp would start the whole ablation once more for each device
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.devices=1"]
GRID: dict[str, list[float]] = {
    "spatial.sigma": [1, 3],
    "spatial.strength": [0, 0.5, 2],
    "bilateral.sigma_xy": [20, 40, 80],
    "bilateral.sigma_value": [3, 5, 10],
    "bilateral.strength": [1, 3],
}
Grid = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Plan:
    """An ablation.

    Args:
        output: Folder of all runs: a run is in OUTPUT/seed_SEED/ROW.
        config: Configurations of data and network.
        network_config: Further ones for the first stage; they override the arguments for all runs.
        head_config: The same for the second stage.
        arguments: Further arguments of main.py fit, for all runs.
        grid: Widths and strengths to choose from for the rows of Gaussian shape.
        free_widths: Start the bilateral filters of the free rows at what was chosen for their row of Gaussian shape.
        command: How it was asked for, to be told with the results.
    """

    output: Path
    config: Sequence[Path] = ()
    network_config: Sequence[Path] = ()
    head_config: Sequence[Path] = ()
    arguments: Sequence[str] = ()
    grid: Grid = field(default_factory=lambda: GRID)
    free_widths: bool = False
    command: str = ""

    def folder(self, row: Row, seed: int) -> Path:
        """The folder of a run."""
        return self.output / f"seed_{seed}" / row.name

    def checkpoint(self, row: Row, seed: int, name: str) -> Path:
        """The checkpoint "best" or "last" of a run."""
        return self.folder(row, seed) / "version_0" / "checkpoints" / f"{name}.ckpt"

    def asked(self, row: Row, head: Path | None = None) -> list[str]:
        """Arguments of a row, the same for all seeds; ``head`` is in place of the row's own configuration."""
        stage = self.network_config if row.head is None else self.head_config
        heads = [] if row.head is None else [head or row.head]
        configs = [f"--config={path}" for path in (*self.config, *heads)]
        return [*QUIET, *configs, *self.arguments, *(f"--config={path}" for path in stage)]

    def given(self, row: Row, seed: int, head: Path | None = None) -> list[str]:
        """All arguments of a run."""
        given = [*self.asked(row, head), f"--seed_everything={seed}"]
        given += [f"--output={self.output / f'seed_{seed}'}", f"--name={row.name}"]
        if row.head is not None:
            given.append(f"--model.init_args.unary_checkpoint={self.checkpoint(NETWORK, seed, 'best')}")
        return given

    def grid_of(self, row: Row) -> dict[str, list[float]]:
        """What is varied for a row: of a row without bilateral potential only the rest."""
        spatial = row.name.startswith("spatial")
        return {
            name: [float(value) for value in values]
            for name, values in self.grid.items()
            if not (spatial and name.startswith("bilateral"))
        }

    def uses_widths(self, row: Row) -> str | None:
        """The row of Gaussian shape whose chosen widths a row starts from."""
        if row.cross_validated:
            return row.name
        return GAUSSIAN.get(row.name) if self.free_widths and row.name.startswith("full") else None

    def settings(self, row: Row) -> dict[str, Any]:
        """All that a result depends on but the seed, by dotted name."""
        settings = effective(self.asked(row))
        if row.head is not None:
            settings |= {f"network: {key}": value for key, value in effective(self.asked(NETWORK)).items()}
        if self.uses_widths(row):
            settings["widths of"] = self.uses_widths(row)
            settings |= {f"grid: {name}": values for name, values in self.grid_of(row).items()}
        return dict(plain(settings))

    def result(self, row: Row, seed: int) -> dict[str, Any] | None:
        """What a finished run has found."""
        result: dict[str, Any] | None = read_json(self.folder(row, seed) / "result.json")
        return result

    def refuse_other_settings(self, row: Row) -> None:
        """Refuses to add to a row whose runs, finished or not, of this or of other seeds, have other settings."""
        asked = self.settings(row)  # also where nothing is stored, so that a missing file is told at once
        for stored in sorted(self.output.glob(f"seed_*/{row.name}/settings.json")):
            differing = differences(read_json(stored), asked)
            if differing:
                raise SystemExit(
                    f"{stored.parent} is a run with other settings ({'; '.join(differing[:3])}): give another "
                    "--output, or delete that folder to run it again"
                )
