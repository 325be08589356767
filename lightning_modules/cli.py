"""The command line: one folder for each run, and no silent contradictions."""

import warnings
from contextlib import nullcontext
from inspect import Parameter, signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import pytorch_lightning as pl
import torch
import yaml
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from pytorch_lightning.loggers import CSVLogger, WandbLogger

from lightning_modules.callbacks import FilterPictures, PredictionPanels, PredictionWriter
from lightning_modules.encoder_weights import without_loading
from lightning_modules.kept_logits import KeptLogits
from lightning_modules.old_names import refusal, refuse_old_units, with_new_names

LINKED = {"num_classes": "num_classes", "classes": "class_names", "colours": "colours", "ignore_index": "ignore_index"}
RATES = ("learning_rate", "weight_decay", "head_learning_rate", "head_weight_decay", "potential_learning_rates")
TRAINING_ONLY = (*RATES, "optimizer", "scheduler", "loss", "regularizer", "freeze_network_epochs")
FREE = ("eval_solver", "tiling", "head_tiling", "unary_checkpoint", "trimap_width", *LINKED.values())


for harmless in (".*LeafSpec.*", "The dirpath has changed", ".*does not have many workers"):
    warnings.filterwarnings("ignore", message=harmless)


class SaveConfig(SaveConfigCallback):
    """Writes config.yaml into the folder of the run, and gives the same to W&B."""

    def save_config(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Gives it to W&B."""
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.log_hyperparams(yaml.safe_load(self.parser.dump(self.config, skip_none=False)))


class Parser(LightningArgumentParser):
    """Says in one sentence that a name is an old one."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Ends the program."""
        told = refusal(message)
        if told is not None:
            raise SystemExit(told)
        super().error(message, ex)


class CLI(LightningCLI):
    """LightningCLI with what every run has: loggers, checkpoints, pictures, and checks."""

    trained: dict[str, Any] | None = None
    """Settings that the given checkpoint was trained with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"parser_class": Parser} | kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Links what model and data share, and adds what every run has."""
        for source, target in LINKED.items():
            parser.link_arguments(f"data.{source}", f"model.init_args.{target}", apply_on="instantiate")
        parser.add_argument("--output", default="outputs", help="Folder of all runs.")
        parser.add_argument("--name", default="run", help="Name of the run: its folder is OUTPUT/NAME/version_N.")
        parser.add_argument("--untrained", type=bool, default=False, help="Evaluate a model without a checkpoint.")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        # one of its own: with save_last, an epoch that is not the best would not be saved
        parser.add_lightning_class_args(ModelCheckpoint, "last_checkpoint")
        parser.set_defaults(
            {"checkpoint.monitor": "val/miou", "checkpoint.mode": "max", "checkpoint.filename": "best"}
            | {"checkpoint.enable_version_counter": False}
            | {"last_checkpoint.filename": "last", "last_checkpoint.enable_version_counter": False}
        )
        parser.add_lightning_class_args(PredictionPanels, "panels")
        parser.add_lightning_class_args(FilterPictures, "filters")
        parser.add_lightning_class_args(PredictionWriter, "writer")
        parser.add_lightning_class_args(KeptLogits, "kept_logits")

    def before_instantiate_classes(self) -> None:
        """Refuses to evaluate nothing, and settles what Lightning would do otherwise."""
        config = self.config[self.subcommand]
        config.weights_only = True  # a checkpoint holds no code
        if self.subcommand == "predict":
            config.return_predictions = False  # they are written to files; all of them together may be large
        if self.subcommand == "fit" and config.ckpt_path is not None and config.checkpoint.dirpath is None:
            folder = str(Path(config.ckpt_path).parent)
            config.checkpoint.dirpath = config.last_checkpoint.dirpath = folder  # so that the best one so far stays
        if self.subcommand != "fit" and config.ckpt_path is None and not config.untrained:
            raise SystemExit(
                f"{self.subcommand} needs a trained model: give --ckpt_path=.../checkpoints/best.ckpt, or "
                "--untrained=true to evaluate one with its initial weights"
            )

    def instantiate_classes(self) -> None:
        """Builds model, data and trainer; what one of them refuses is shown as it said it."""
        config = self.config[self.subcommand]
        complete = config.ckpt_path is not None or config.model.init_args.get("unary_checkpoint") is not None
        try:
            with without_loading() if complete else nullcontext():
                super().instantiate_classes()
        except ValueError as error:
            refusal: BaseException = error
            while refusal.__cause__ is not None:  # the parser wraps it in all that it has tried
                refusal = refusal.__cause__
            raise refusal from None
        if self.trained is not None:
            given = {"class_names": list(self.datamodule.classes), "ignore_index": self.datamodule.ignore_index}
            self._refuse_differences(given)

    def instantiate_trainer(self, **kwargs: Any) -> pl.Trainer:
        """Puts a CSV logger first, whatever others there are: its folder is the folder of the run."""
        config = self.config[self.subcommand]
        given = self.config_init[self.subcommand].trainer.logger
        others = given if isinstance(given, list) else [] if given in (None, True, False) else [given]
        # absolute, or a resumed run would not recognise its checkpoints; flushed, so that nothing is lost in a kill
        csv = CSVLogger(Path(config.output).resolve(), config.name, flush_logs_every_n_steps=1)
        return super().instantiate_trainer(logger=[csv, *others], **kwargs)

    def after_run(self) -> None:
        """Says where everything is."""
        if self.trainer.is_global_zero:
            print(f"written to {self.trainer.loggers[0].log_dir}")  # trainer.log_dir is a collective call

    after_fit = after_validate = after_test = after_predict = after_run

    def _parse_ckpt_path(self) -> None:
        """Refuses a checkpoint that contradicts the configuration (Lightning would let it win, silently)."""
        subcommand = self.config["subcommand"]
        config = self.config[subcommand]
        if config.ckpt_path is None:
            return
        if not Path(config.ckpt_path).is_file():
            raise SystemExit(f"there is no file {config.ckpt_path}: give --ckpt_path the path of a checkpoint")
        try:
            checkpoint = torch.load(config.ckpt_path, map_location="cpu", weights_only=True)
            self.trained = with_new_names(checkpoint["hyper_parameters"])
        except Exception as error:
            raise SystemExit(
                f"{config.ckpt_path} is no checkpoint of this program ({error}): give one from a run's checkpoints"
            ) from error
        if subcommand == "fit":
            refuse_old_units(checkpoint["state_dict"])
        config.model.init_args.unary_checkpoint = None  # the checkpoint has all weights
        free = FREE if subcommand == "fit" else FREE + TRAINING_ONLY
        asked = config.model.init_args.as_dict()
        self._refuse_differences({key: value for key, value in asked.items() if key not in free})

    def _refuse_differences(self, asked: dict[str, Any]) -> None:
        differences = _differences(asked, self.trained)
        if differences:
            path = self.config[self.config["subcommand"]].ckpt_path
            raise SystemExit(
                f"{path} was trained with other settings than asked for: {'; '.join(differences)}. Give the "
                "config.yaml of its run (another solver for evaluation: --model.init_args.eval_solver)"
            )


def _differences(asked: Any, trained: Any, path: str = "model") -> list[str]:
    """Where two trees of settings differ."""
    if isinstance(asked, dict) and isinstance(trained, dict):
        trained = _with_new_arguments(trained)
        return [found for key in asked for found in _differences(asked[key], trained.get(key), f"{path}.{key}")]
    if isinstance(asked, list | tuple) and isinstance(trained, list | tuple) and len(asked) == len(trained):
        pairs = enumerate(zip(asked, trained, strict=True))
        return [found for i, (a, b) in pairs for found in _differences(a, b, f"{path}[{i}]")]
    return [] if asked == trained else [f"{path} is {_brief(trained)} there and {_brief(asked)} here"]


def _with_new_arguments(block: dict[str, Any]) -> dict[str, Any]:
    """The block of a class, in which arguments that came after it was written have their defaults."""
    if "class_path" not in block:
        return block
    parameters = signature(resolve_name(block["class_path"])).parameters.values()
    defaults = {one.name: one.default for one in parameters if one.default is not Parameter.empty}
    return block | {"init_args": defaults | (block.get("init_args") or {})}


def _brief(setting: Any) -> Any:
    """A setting, or the class of a block of settings."""
    return setting["class_path"].split(".")[-1] if isinstance(setting, dict) and "class_path" in setting else setting
