"""Entry point: python main.py fit|validate|test|predict --config experiments/....yaml."""

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import WandbLogger

import crfgrad  # noqa: F401  so that YAML can name its classes without their module
from datamodules import SegmentationDataModule
from lightning_modules import FilterPictures, PredictionPanels, PredictionWriter, SegmentationModule

RATES = ("learning_rate", "weight_decay", "head_learning_rate", "head_weight_decay", "optimizer", "scheduler")
TRAINING_ONLY = (*RATES, "loss", "freeze_network_epochs")
FREE = ("eval_solver", "unary_checkpoint", "num_classes", "class_names", "ignore_index", "trimap_width")


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml into the folder of the run, and gives the same to W&B."""

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Gives it to W&B."""
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_hyperparams(yaml.safe_load(self.parser.dump(self.config, skip_none=False)))


class CLI(LightningCLI):
    """LightningCLI with one folder for each run, and no silent contradictions."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links what model and data share, and adds what every run has."""
        for source, target in (("num_classes",) * 2, ("classes", "class_names"), ("ignore_index",) * 2):
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")
        parser.add_argument("--output", default="outputs", help="Folder of all runs.")
        parser.add_argument("--name", default="run", help="Name of the run: its folder is OUTPUT/NAME/version_N.")
        parser.add_argument("--untrained", type=bool, default=False, help="Evaluate a model without a checkpoint.")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {"checkpoint.monitor": "val/miou", "checkpoint.mode": "max", "checkpoint.save_last": True}
            | {"checkpoint.filename": "best", "checkpoint.enable_version_counter": False}
        )
        parser.add_lightning_class_args(PredictionPanels, "panels")
        parser.add_lightning_class_args(FilterPictures, "filters")
        parser.add_lightning_class_args(PredictionWriter, "writer")

    def before_instantiate_classes(self) -> None:
        """Puts a CSV logger first, whatever others there are: its folder is the folder of the run."""
        config = self.config[self.subcommand]
        csv = {"class_path": "CSVLogger", "init_args": {"save_dir": config.output, "name": config.name}}
        given = config.trainer.logger
        others = given if isinstance(given, list) else [] if given in (None, True, False) else [given]
        self.config = self.parser.parse_object({self.subcommand: {"trainer": {"logger": [csv, *others]}}}, self.config)
        if self.subcommand != "fit" and config.ckpt_path is None and not config.untrained:
            raise SystemExit(
                f"{self.subcommand} needs a trained model: give --ckpt_path=.../checkpoints/best.ckpt, or "
                "--untrained=true to evaluate one with its initial weights"
            )

    def instantiate_classes(self) -> None:
        """Builds model, data and trainer; what one of them refuses is shown as it said it."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            refusal: BaseException = error
            while refusal.__cause__ is not None:  # the parser wraps it in all that it has tried
                refusal = refusal.__cause__
            raise refusal from None

    def _parse_ckpt_path(self) -> None:
        """Refuses a checkpoint that contradicts the configuration (Lightning would let it win, silently)."""
        subcommand = self.config["subcommand"]
        config = self.config[subcommand]
        if config.ckpt_path is None:
            return
        if not Path(config.ckpt_path).is_file():
            raise SystemExit(f"there is no checkpoint {config.ckpt_path}: check the path")
        trained = torch.load(config.ckpt_path, map_location="cpu", weights_only=True)["hyper_parameters"]
        asked = config.model.init_args.as_dict()
        asked["unary_checkpoint"] = config.model.init_args.unary_checkpoint = None  # the checkpoint has all weights
        irrelevant = FREE if subcommand == "fit" else FREE + TRAINING_ONLY
        differences = _differences({key: value for key, value in asked.items() if key not in irrelevant}, trained)
        if differences:
            raise SystemExit(
                f"{config.ckpt_path} was trained with other settings than asked for: {'; '.join(differences)}. Give "
                "the config.yaml of its run (another solver for evaluation: --model.init_args.eval_solver)"
            )


def _differences(asked: Any, trained: Any, path: str = "model") -> list[str]:
    """Where two trees of settings differ."""
    if isinstance(asked, dict) and isinstance(trained, dict):
        return [found for key in asked for found in _differences(asked[key], trained.get(key), f"{path}.{key}")]
    if isinstance(asked, list | tuple) and isinstance(trained, list | tuple) and len(asked) == len(trained):
        pairs = enumerate(zip(asked, trained, strict=True))
        return [found for i, (a, b) in pairs for found in _differences(a, b, f"{path}[{i}]")]
    return [] if asked == trained else [f"{path} is {trained} there and {asked} here"]


def main(args: ArgsType = None) -> CLI:
    """Runs the command line."""
    return CLI(
        SegmentationModule,
        SegmentationDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        save_config_callback=SaveConfig,
        args=args,
    )


if __name__ == "__main__":
    main()
