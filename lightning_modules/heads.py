"""Heads beside ``crfgrad.CRF``."""

from torch import Tensor, nn

from crfgrad import DenseCRF


class DenseCRFHead(nn.Module):
    """The dense CRF with fixed parameters as post-processing, as behind DeepLab: nothing in it is learned.

    Args:
        num_classes: Number of labels; any will do.
        gaussian_sxy: Width of the position kernel in pixels.
        gaussian_compat: Weight of the position kernel.
        bilateral_sxy: Width in position of the bilateral kernel.
        bilateral_srgb: Its width in colour, 0..255.
        bilateral_compat: Its weight.
        iterations: Iterations of mean field.

    Shape:
        - logits: (B, L, H, W)
        - image: (B, C, H, W), colours 0..255
        - result: distributions (B, L, H, W)
    """

    def __init__(
        self,
        num_classes: int,
        gaussian_sxy: float = 3.0,
        gaussian_compat: float = 3.0,
        bilateral_sxy: float = 80.0,
        bilateral_srgb: float = 13.0,
        bilateral_compat: float = 10.0,
        iterations: int = 10,
    ) -> None:
        super().__init__()
        self.crf = DenseCRF(
            gaussian_sxy, gaussian_compat, bilateral_sxy, bilateral_srgb, bilateral_compat, iterations=iterations
        )

    def forward(self, logits: Tensor, image: Tensor) -> Tensor:
        """Logits and image -> distributions."""
        q: Tensor = self.crf(logits.float().softmax(dim=1), image)
        return q
