"""Networks with a CRF behind them: exported for images of any size, and trained when compiled."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from crfgrad import CRF
from lightning_modules.networks import SMPNetwork
from tests.crfgrad.test_tracing import needs_compiler
from tests.lightning_modules.test_segmentation import Streets, build, crf, trainer


class Refined(nn.Module):
    """A network of smp, which wants multiples of 32, with a CRF behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = SMPNetwork(3, "fpn", "resnet18")
        self.crf = CRF(3)

    def forward(self, image: Tensor) -> Tensor:
        q: Tensor = self.crf(self.network(image), image)
        return q


@pytest.mark.parametrize("strict", [True, False])
def test_a_network_that_pads_is_exported_for_images_of_any_size(strict: bool, tmp_path: Path) -> None:
    model = Refined().eval()
    dim = torch.export.Dim
    sizes = {0: dim("batch", max=64), 2: dim("height", min=33, max=4096), 3: dim("width", min=33, max=4096)}
    with torch.no_grad():
        program = torch.export.export(
            model,
            (255 * torch.rand(2, 3, 70, 45),),
            dynamic_shapes=(sizes,),
            strict=strict,
            prefer_deferred_runtime_asserts_over_guards=True,
        )
        torch.export.save(program, tmp_path / "refined.pt2")
        loaded = torch.export.load(tmp_path / "refined.pt2").module()
        for size in ((64, 101), (33, 96)):
            image = 255 * torch.rand(3, 3, *size)
            assert torch.allclose(loaded(image), model(image), atol=1e-5)


@needs_compiler
def test_a_compiled_module_trains(tmp_path: Path) -> None:
    losses = []
    for compiled in (False, True):
        torch.manual_seed(0)
        torch._dynamo.reset()
        module = build(head=crf)
        if compiled:
            module.compile()
        training = trainer(tmp_path, max_epochs=1)
        training.fit(module, Streets())
        losses.append(float(training.callback_metrics["train/loss"]))
        assert training.callback_metrics["val/miou"] >= 0
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
