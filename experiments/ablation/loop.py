"""Plain loops over the images of a run: the energies that either solver ends at."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import torch

from crfgrad import CRF
from experiments.solvers import switched
from lightning_modules.cli import CLI


def batches(run: CLI, split: str) -> Iterator[dict[str, Any]]:
    """The batches of "val" or "test" that the trainer of the run has evaluated."""
    limit = getattr(run.trainer, f"num_{split}_batches")[0]
    loader = getattr(run.datamodule, f"{split}_dataloader")()
    return itertools.islice(loader, None if math.isinf(limit) else int(limit))


@torch.no_grad()
def compare_solvers(run: CLI) -> dict[str, Any] | None:
    """E(q^T) of each test image by the solver of a CRF, and by the switched one on the same energy."""
    model = run.model
    if not isinstance(model.head, CRF) or model.head_tiling is not None:
        return None
    model.to(run.trainer.strategy.root_device).eval()
    own, other = model.solver, switched(model.solver)
    energies: dict[str, list[float]] = {"own": [], "switched": []}
    for batch in batches(run, "test"):
        image = batch["image"].to(model.device)
        logits, energy, _ = model.infer(image)
        start = model.head.initial(logits)
        for name, solver in (("own", own), ("switched", other)):
            energies[name] += energy(solver(energy, start)).tolist()
    return {"solver": type(own).__name__, "switched_solver": type(other).__name__, **energies}
