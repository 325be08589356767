"""Entry point: python main.py fit|validate|test|predict --config experiments/....yaml."""

from pytorch_lightning.cli import ArgsType

import crfgrad  # noqa: F401  so that YAML can name its classes without their module
from datamodules import SegmentationDataModule
from lightning_modules import SegmentationModule
from lightning_modules.cli import CLI, SaveConfig


def main(args: ArgsType = None) -> CLI:
    """Runs the command line."""
    return CLI(
        SegmentationModule,
        SegmentationDataModule,
        subclass_mode_model=True,
        subclass_mode_data=True,
        seed_everything_default=0,
        save_config_callback=SaveConfig,
        auto_configure_optimizers=False,  # the module builds its own, with rates for network and head
        args=args,
    )


if __name__ == "__main__":
    try:
        main()
    except FileNotFoundError as missing:  # data, above all, and what to do about it
        raise SystemExit(str(missing)) from None
