"""A network and a CRF head, trained and evaluated together."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torchmetrics import MeanMetric

from crfgrad import CRF, Energy, Solver, log_distribution
from datamodules.colours import Colour, spread_hues
from lightning_modules.losses import build_loss
from lightning_modules.metrics import segmentation_metrics, trimap
from lightning_modules.old_names import refuse_old_units, with_new_names
from lightning_modules.rates import check_potential_rates, head_groups
from lightning_modules.regularizers import Regularizer
from lightning_modules.sizes import at_size
from lightning_modules.tiling import Tiling


class SegmentationModule(pl.LightningModule):
    """Any network, alone or with a CRF head behind it.

    The two-stage training of the paper: train the network alone, then give ``unary_checkpoint`` and a
    head, and train both end to end.

    Args:
        num_classes: Number of labels; comes from the data module.
        network: Called with ``num_classes``; maps images 0..255 to logits.
        head: Called with ``num_classes``; a ``CRF`` or any module of (logits, image), or null for none.
        class_names: Names of the labels; come from the data module.
        colours: Their colours in pictures; come from the data module.
        ignore_index: Label of pixels that do not count; comes from the data module.
        loss: CrossEntropyLoss, or the name of a loss of smp.losses.
        loss_options: Arguments of that loss.
        regularizer: A loss without labels beside it, in training.
        learning_rate: Learning rate of the network.
        weight_decay: Weight decay of the network.
        head_learning_rate: Learning rate of the head. Its parameters have the unit of what a pixel pays, so that one
            rate suits all of them.
        head_weight_decay: Weight decay of the head.
        potential_learning_rates: By class of potential, rates in place of ``head_learning_rate``. What decays does so
            at the same speed whatever its rate.
        optimizer: Called with the parameter groups.
        scheduler: Called with the optimizer; steps once an epoch.
        unary_checkpoint: Checkpoint of a ``SegmentationModule`` whose network to start from.
        freeze_network_epochs: Train only the head for so many epochs.
        trimap_width: Half the width, in pixels of the mask, of the band along boundaries where IoU is measured too.
        eval_solver: Another solver for the head in validation, test and prediction.
        tiling: Applies the network to tiles of large images there.
        head_tiling: Applies the head to tiles of them; energies are then not measured.
    """

    def __init__(
        self,
        num_classes: int,
        network: Callable[[int], nn.Module],
        head: Callable[[int], nn.Module] | None = None,
        class_names: Sequence[str] | None = None,
        colours: Sequence[Colour] | None = None,
        ignore_index: int = 255,
        loss: str = "CrossEntropyLoss",
        loss_options: dict[str, Any] | None = None,
        regularizer: Regularizer | None = None,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.0,
        head_learning_rate: float = 0.03,
        head_weight_decay: float = 0.0,
        potential_learning_rates: dict[str, float] | None = None,
        optimizer: Callable[[Iterable], Optimizer] = torch.optim.AdamW,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        unary_checkpoint: str | None = None,
        freeze_network_epochs: int = 0,
        trimap_width: int = 3,
        eval_solver: Solver | None = None,
        tiling: Tiling | None = None,
        head_tiling: Tiling | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        injected = ("network", "head", "regularizer", "optimizer", "scheduler", "eval_solver", "tiling", "head_tiling")
        for name in injected:
            if callable(self.hparams[name]):  # given from Python; the command line gives settings
                del self.hparams[name]
        self.class_names = list(class_names or map(str, range(num_classes)))
        self.colours = list(colours or spread_hues(num_classes))
        self.network = network(num_classes)
        self.head = None if head is None else head(num_classes)
        self.loss = build_loss(loss, ignore_index, **(loss_options or {}))
        self.regularizer = regularizer
        self.eval_solver = eval_solver
        self.tiling = tiling
        self.head_tiling = head_tiling
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.switched_off: list[nn.Parameter] = []  # of the network, while only the head is trained
        if unary_checkpoint is not None:
            self.load_network(unary_checkpoint)
        check_potential_rates(potential_learning_rates or {})
        if freeze_network_epochs and self.head is None:
            raise ValueError("freeze_network_epochs is for a module with a head: give model.head")
        if regularizer is not None and regularizer.on == "head" and self.head is None:
            raise ValueError("a regularizer on the head is for a module with a head: give model.head, or on: network")
        if head_tiling is not None and self.head is None:
            raise ValueError("head_tiling is for a module with a head: give model.head, or tiling for the network")
        if eval_solver is not None and not isinstance(self.head, CRF):
            raise ValueError("eval_solver is for a module with a CRF as its head: give model.head")
        if eval_solver is not None and list(eval_solver.parameters()):
            raise ValueError("eval_solver is never trained: leave out learn_step_size, and give step_size")
        outputs = ("network",) if self.head is None else ("network", "crf")
        self.metrics: Any = nn.ModuleDict(
            {
                f"{stage}_{output}_{where}": segmentation_metrics(num_classes, ignore_index)
                for stage in ("val", "test")
                for output in outputs
                for where in ("image", "trimap")
            }
        )
        self.energies: Any = nn.ModuleDict(
            {f"{stage}_{when}": MeanMetric() for stage in ("val", "test") for when in ("0", "T")}
        )
        # Lightning's own mean over processes rounds the number of images of each
        self.losses: Any = nn.ModuleDict({stage: MeanMetric(nan_strategy="disable") for stage in ("val", "test")})

    @classmethod
    def load_from_checkpoint(cls, checkpoint_path: Any, *args: Any, **kwargs: Any) -> "SegmentationModule":
        """See ``LightningModule.load_from_checkpoint``. Settings of the head may have old names."""
        stored = torch.load(checkpoint_path, map_location="cpu", weights_only=kwargs.get("weights_only"))
        if hasattr(checkpoint_path, "seek"):
            checkpoint_path.seek(0)
        head = stored.get("hyper_parameters", {}).get("head")
        renamed = {} if with_new_names(head) == head else {"head": with_new_names(head)}
        module: SegmentationModule = super().load_from_checkpoint(checkpoint_path, *args, **renamed | kwargs)
        return module

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuses to go on with a training whose parameters had other units.

        Where none goes on, weights of the regularizer that the checkpoint was trained with do not matter.
        """
        stored = checkpoint["state_dict"]
        if self._trainer is not None and self._trainer.training:
            refuse_old_units(stored)
            return
        present = {key: value for key, value in self.state_dict().items() if key.startswith("regularizer.")}
        others = {key: value for key, value in stored.items() if not key.startswith("regularizer.")}
        checkpoint["state_dict"] = others | present

    def load_network(self, path: str) -> None:
        """Loads the network, and not the head, of a checkpoint."""
        if not Path(path).is_file():
            raise FileNotFoundError(f"unary_checkpoint {path} is no file: train the network alone first")
        state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
        network = {key.removeprefix("network."): value for key, value in state.items() if key.startswith("network.")}
        try:
            self.network.load_state_dict(network)
        except RuntimeError as error:
            raise ValueError(
                f"unary_checkpoint {path} holds another network, or one for other classes: give one that was trained "
                f"with these settings ({str(error).splitlines()[1].strip()})"
            ) from None

    def forward(self, image: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Image (B, C, H, W) 0..255 -> logits of the network and distributions of head or network.

        Logits that are known already take the place of the network.
        """
        if self.training:
            if logits is None:
                with torch.set_grad_enabled(not self.frozen):
                    logits = self.network(image)
            return logits, logits.softmax(dim=1) if self.head is None else self.head(logits, image)
        logits, _, states = self.infer(image, logits)
        *_, q = states
        return logits, q

    def network_logits(self, image: Tensor) -> Tensor:
        """What the network says in evaluation, in tiles if there are any."""
        logits: Tensor = self.network(image) if self.tiling is None else self.tiling(self.network, image)
        return logits

    def infer(self, image: Tensor, logits: Tensor | None = None) -> tuple[Tensor, Energy | None, Iterator[Tensor]]:
        """Logits, the energy if the head is a CRF, and the distributions q^0 to q^T, one after the other.

        Without a head there is only q^0; of one that is no CRF, or works in tiles, what comes before it and after it.
        """
        logits = self.network_logits(image) if logits is None else logits
        if isinstance(self.head, CRF) and self.head_tiling is None:
            energy = self.head.energy(logits, image)
            return logits, energy, self.solver.trajectory(energy, self.head.initial(logits))
        start = logits.float().softmax(dim=1)
        if self.head is None:
            return logits, None, iter([start])
        refine = self._solve if isinstance(self.head, CRF) else self.head
        refined = refine(logits, image) if self.head_tiling is None else self.head_tiling(refine, logits, image)
        return logits, None, iter([start, refined])

    def _solve(self, logits: Tensor, image: Tensor) -> Tensor:
        """The result of a CRF head, by the solver that counts."""
        head = cast(CRF, self.head)
        q: Tensor = self.solver(head.energy(logits, image), head.initial(logits))
        return q

    @property
    def solver(self) -> Solver:
        """The solver of a CRF head, or ``eval_solver`` in its place where there is one and nothing is trained."""
        if self.eval_solver is not None and not self.training:
            return self.eval_solver
        return cast(CRF, self.head).solver

    @property
    def frozen(self) -> bool:
        """Whether only the head is being trained."""
        return self.training and self.current_epoch < self.hparams["freeze_network_epochs"]

    @property
    def frozen_throughout(self) -> bool:
        """Whether a whole fit trains only the head."""
        epochs = self.trainer.max_epochs
        frozen = epochs is not None and 0 <= epochs <= self.hparams["freeze_network_epochs"]
        return frozen and self.head is not None

    def score(self, logits: Tensor, q: Tensor, mask: Tensor) -> Tensor:
        """The loss on the distributions of the head, or on the logits if there is none."""
        loss: Tensor = self.loss(logits if self.head is None else log_distribution(q), mask)
        return loss

    def training_step(self, batch: dict[str, Any], batch_index: int) -> Tensor:
        """One step."""
        logits, q = self(batch["image"], _kept(batch))
        loss = self.score(logits, q, batch["mask"])
        self.log("train/loss", loss, prog_bar=True, batch_size=len(q))
        if self.regularizer is not None:
            unknown = batch["mask"] == self.hparams["ignore_index"]
            added = self.regularizer(batch["image"], logits, q, unknown, self.current_epoch)
            self.log("train/regularizer", added, batch_size=len(q))
            loss = loss + added
        if self.frozen:  # DDP waits for a gradient of every parameter
            loss = loss + 0 * sum(weight.sum() for weight in self.network.parameters() if weight.requires_grad)
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """A frozen network is out of reach of weight decay and momentum, too."""
        if self.frozen:
            for parameter in self.network.parameters():
                parameter.grad = None

    def validation_step(self, batch: dict[str, Any], batch_index: int) -> None:
        """See ``evaluate``."""
        self.evaluate(batch, "val")

    def test_step(self, batch: dict[str, Any], batch_index: int) -> None:
        """See ``evaluate``."""
        self.evaluate(batch, "test")

    def predict_step(self, batch: dict[str, Any], batch_index: int) -> list[Tensor]:
        """The distributions (L, H, W) of each image, at the size of its file, as ``evaluate`` measures them."""
        logits, q = self(batch["image"])
        sizes = enumerate(batch["size"].tolist())
        if self.head is None:
            return [at_size(logits[[index]], size)[0].float().softmax(dim=0) for index, size in sizes]
        return [at_size(q[[index]], size)[0] for index, size in sizes]

    def evaluate(self, batch: dict[str, Any], stage: str) -> None:
        """Updates the metrics of the network alone and of the head, at the sizes of the masks, and the energies."""
        logits, energy, states = self.infer(batch["image"], _kept(batch))
        q = start = next(states)
        for state in states:
            q = state  # only the last one counts
        if energy is not None:
            self.energies[f"{stage}_0"].update(energy(start))
            self.energies[f"{stage}_T"].update(energy(q))
        for index, mask in enumerate(batch["mask"]):  # (H, W), of any size
            truth = mask[None]
            band = trimap(truth, self.hparams["trimap_width"], self.hparams["ignore_index"])
            own = {name: at_size(each[[index]], mask.shape) for name, each in (("network", logits), ("crf", q))}
            for name, scores in own.items():
                if f"{stage}_{name}_image" in self.metrics:
                    self.metrics[f"{stage}_{name}_image"].update(scores.argmax(1), truth)
                    self.metrics[f"{stage}_{name}_trimap"].update(scores.argmax(1), band)
            self.losses[stage].update(self.score(own["network"], own["crf"], truth))

    def on_validation_epoch_end(self) -> None:
        """Logs the metrics of the epoch."""
        self.log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Logs the metrics of the test."""
        self.log_metrics("test")

    def log_metrics(self, stage: str) -> None:
        """IoU of the result and, with a head, of the network alone (``_network``); mean loss and energies."""
        self.log(f"{stage}/loss", self.losses[stage].compute(), sync_dist=True)
        self.losses[stage].reset()
        for name in ("network",) if self.head is None else ("network", "crf"):
            suffix = "_network" if name == "network" and self.head is not None else ""
            for where, prefix in (("image", ""), ("trimap", "trimap_")):
                metric = self.metrics[f"{stage}_{name}_{where}"]
                values = metric.compute()
                metric.reset()
                self.log(f"{stage}/{prefix}miou{suffix}", values["miou"], prog_bar=where == "image", sync_dist=True)
                for class_name, value in zip(self.class_names, values["iou"], strict=True):
                    self.log(f"{stage}/{prefix}iou{suffix}/{class_name}", value, sync_dist=True)
        if isinstance(self.head, CRF) and self.head_tiling is None:
            for when, name in (("0", "energy_network"), ("T", "energy")):
                metric = self.energies[f"{stage}_{when}"]
                self.log(f"{stage}/{name}", metric.compute(), sync_dist=True)
                metric.reset()

    def configure_optimizers(self) -> Any:
        """One group of parameters for the network, one for the head, and one for each potential with its own rate."""
        rates = self.hparams
        network = {"params": list(self.network.parameters()), "lr": rates["learning_rate"]}
        groups = [network | {"weight_decay": rates["weight_decay"]}]
        if self.head is not None:
            own = rates["potential_learning_rates"] or {}
            groups += head_groups(self.head, rates["head_learning_rate"], rates["head_weight_decay"], own)
        optimizer = self.optimizer(groups)
        if self.scheduler is None:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": self.scheduler(optimizer)}

    def on_train_epoch_start(self) -> None:
        """Keeps batch normalisation of a frozen network as it is."""
        self.network.train(not self.frozen)

    def setup(self, stage: str) -> None:
        """A network that stays frozen throughout needs no gradients, which DDP has to know before it begins."""
        self.teardown(stage)  # which a fit that failed has left out
        if stage == "fit" and self.frozen_throughout:
            self.switched_off = [weight for weight in self.network.parameters() if weight.requires_grad]
            self.network.requires_grad_(False)

    def teardown(self, stage: str) -> None:
        """Gives the network its gradients back, so that another fit may train it."""
        for weight in self.switched_off:
            weight.requires_grad_(True)
        self.switched_off = []

    def on_fit_start(self) -> None:
        """Refuses a head without parameters."""
        if self.head is not None and not list(self.head.parameters()):
            raise ValueError(
                f"{type(self.head).__name__} has nothing to learn, so there is nothing to fit: use test with "
                "--untrained true and --model.init_args.unary_checkpoint"
            )


def _kept(batch: dict[str, Any]) -> Tensor | None:
    """Logits (B, L, H, W) that a batch brings, if it does."""
    return batch["logits"].float() if "logits" in batch else None
