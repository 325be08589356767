"""The command line: runs have folders, loggers are fed, contradictions are refused, predictions become files."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from datamodules import FolderDataModule
from lightning_modules import SMPNetwork
from tests.command_line import ROOT, read_metrics, run, streets

FULL = f"--config={ROOT / 'experiments' / 'heads' / 'full.yaml'}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a network with a head, trained for an epoch."""
    output = tmp_path_factory.mktemp("trained")
    streets("fit", output, FULL, "--name=run")
    return output / "run" / "version_0"


def best(folder: Path) -> str:
    return f"--ckpt_path={folder / 'checkpoints' / 'best.ckpt'}"


def test_a_run_has_its_folder(trained: Path) -> None:
    assert {"config.yaml", "metrics.csv", "checkpoints", "pictures"} <= {path.name for path in trained.iterdir()}
    assert {path.name for path in (trained / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    columns = set(read_metrics(trained)[0])
    assert {"val/miou", "val/trimap_miou", "val/iou/traffic light", "val/loss", "val/miou_network"} <= columns


def test_using_the_configuration_of_a_run_again_makes_one_folder(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run" / "version_0")
    for _ in range(2):
        cli = run("test", f"--config={tmp_path / 'run/version_0/config.yaml'}", best(trained), f"--output={tmp_path}")
        assert len(cli.trainer.loggers) == 1
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"version_0", "version_1", "version_2"}
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_a_checkpoint_needs_no_encoder_weights(tmp_path: Path) -> None:
    weights = tmp_path / "encoder.pth"
    torch.save(SMPNetwork(num_classes=2).model.encoder.state_dict(), weights)
    given = [f"--model.init_args.network.init_args.encoder_weights={weights}"]
    folder = Path(streets("fit", tmp_path, *given).trainer.loggers[0].log_dir)
    weights.unlink()
    best = folder / "checkpoints" / "best.ckpt"
    streets("test", tmp_path, *given, f"--ckpt_path={best}")
    streets("fit", tmp_path, *given, f"--model.init_args.unary_checkpoint={best}")
    with pytest.raises(ValueError, match=r"encoder\.pth is no file"):
        streets("fit", tmp_path, *given)


def test_a_checkpoint_is_only_weights_and_settings(trained: Path) -> None:
    checkpoint = torch.load(trained / "checkpoints" / "best.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["num_classes"] == 8
    assert checkpoint["hyper_parameters"]["network"]["class_path"] == "lightning_modules.SMPNetwork"
    assert checkpoint["hyper_parameters"]["class_names"][2] == "road"


def test_validate_finds_what_training_has_found(trained: Path, tmp_path: Path) -> None:
    rows = [row for row in read_metrics(trained) if row["val/miou"]]
    again = run("validate", f"--config={trained / 'config.yaml'}", best(trained), f"--output={tmp_path}")
    for name in ("val/miou", "val/miou_network", "val/trimap_miou", "val/energy", "val/loss"):
        assert again.trainer.callback_metrics[name].item() == pytest.approx(float(rows[-1][name]), rel=1e-5)


def test_the_solver_can_be_swapped_for_a_test(trained: Path, tmp_path: Path) -> None:
    given = ["test", f"--config={trained / 'config.yaml'}", best(trained), f"--output={tmp_path}"]
    own = run(*given).trainer.callback_metrics
    swap = ["--model.init_args.eval_solver=MeanField", "--model.init_args.eval_solver.init_args.iterations=9"]
    swapped = run(*given, *swap)
    assert swapped.model.eval().solver.iterations == 9
    assert own["test/energy_network"] == swapped.trainer.callback_metrics["test/energy_network"]
    assert own["test/energy"] < swapped.trainer.callback_metrics["test/energy"]


def test_what_is_refused(trained: Path, tmp_path: Path) -> None:
    for command in ("validate", "test", "predict"):
        with pytest.raises(SystemExit, match=f"{command} needs a trained model: give --ckpt_path"):
            streets(command, tmp_path)
    with pytest.raises(SystemExit, match=r"there is no file nowhere\.ckpt"):
        streets("test", tmp_path, "--ckpt_path=nowhere.ckpt")
    other = "--model.init_args.network.init_args.arch=unet"
    with pytest.raises(SystemExit, match=r"model\.network\.init_args\.arch is fpn there and unet here"):
        streets("test", tmp_path, FULL, best(trained), other)
    with pytest.raises(SystemExit, match=r"model\.learning_rate is 0\.001 there and 0.5 here"):
        streets("fit", tmp_path, FULL, best(trained), "--model.init_args.learning_rate=0.5")
    with pytest.raises(SystemExit, match=r"model\.head is CRF there and None here"):
        streets("test", tmp_path, best(trained))
    (tmp_path / "other.ckpt").write_text("no checkpoint")
    with pytest.raises(SystemExit, match=r"other\.ckpt is no checkpoint of this program"):
        streets("test", tmp_path, FULL, f"--ckpt_path={tmp_path / 'other.ckpt'}")
    data = [f"--data={FolderDataModule.__name__}", "--data.init_args.images=i", "--data.init_args.masks=m"]
    names = "--data.init_args.classes=[a, b, c, d, e, f, g, h]"
    model = f"--config={trained / 'model.yaml'}"
    settings = yaml.safe_load((trained / "config.yaml").read_text())["model"]
    (trained / "model.yaml").write_text(yaml.safe_dump({"model": settings}))
    with pytest.raises(SystemExit, match=r"model\.class_names\[0\] is sky there and a here"):
        run("test", model, *data, names, best(trained), f"--output={tmp_path}")
    unet = "--model.init_args.network.init_args.arch=unet"
    with pytest.raises(ValueError, match=r"unary_checkpoint .*best\.ckpt holds another network"):
        streets("fit", tmp_path, unet, f"--model.init_args.unary_checkpoint={trained / 'checkpoints' / 'best.ckpt'}")
    with pytest.raises(FileNotFoundError, match=r"unary_checkpoint nowhere\.ckpt is no file"):
        streets("fit", tmp_path, FULL, "--model.init_args.unary_checkpoint=nowhere.ckpt")
    assert streets("test", tmp_path, "--untrained=true").trainer.callback_metrics["test/miou"] >= 0


def test_predict_writes_files_of_the_original_sizes(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    sizes = {"wide": (50, 90), "tall": (77, 41)}
    for name, (height, width) in sizes.items():
        pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{name}.jpg")
    images = f"--data.init_args.predict_images={tmp_path / 'images'}"
    given = ["predict", f"--config={trained / 'config.yaml'}", best(trained), images, f"--output={tmp_path}"]
    resize = '--data.init_args.eval_transforms=[{"class_path": "albumentations.Resize", "init_args": '
    resize += '{"height": 32, "width": 48}}]'
    cli = run(*given, "--name=predicted", "--writer.probabilities=true", resize)
    assert not cli.trainer.predict_loop.predictions
    folder = tmp_path / "predicted" / "version_0" / "predictions"
    for name, (height, width) in sizes.items():
        labels = Image.open(folder / "labels" / f"{name}.png")
        assert labels.size == Image.open(folder / "overlays" / f"{name}.png").size == (width, height)
        assert labels.getpalette()[:3] == [70, 130, 180]  # type: ignore[index]
        probabilities = np.load(folder / "probabilities" / f"{name}.npy").astype(np.float32)
        assert probabilities.shape == (8, height, width)
        assert np.allclose(probabilities.sum(0), 1, atol=5e-3)
        chosen = np.take_along_axis(probabilities, np.array(labels)[None].astype(np.int64), 0)[0]
        assert (chosen >= probabilities.max(0) - 2e-3).all()  # float16 may tie


def test_predictions_of_files_of_one_name(trained: Path, tmp_path: Path) -> None:
    for name in ("a/x.png", "b/x.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True)
        Image.fromarray(np.zeros((40, 50, 3), dtype=np.uint8)).save(tmp_path / "images" / name)
    images = f"--data.init_args.predict_images={tmp_path / 'images'}/**/*.png"
    given = ["predict", f"--config={trained / 'config.yaml'}", best(trained), images, f"--output={tmp_path}"]
    run(*given, "--writer.folder=" + str(tmp_path / "out"))
    assert (tmp_path / "out/labels/a/x.png").is_file()
    assert (tmp_path / "out/labels/b/x.png").is_file()
    Image.fromarray(np.zeros((40, 50, 3), dtype=np.uint8)).save(tmp_path / "images/a/x.jpg")
    with pytest.raises(ValueError, match=r"a/x\.jpg and .*a/x\.png would have one result, x"):
        run(*given, "--data.init_args.predict_images=" + str(tmp_path / "images/a/*"))


def test_loggers_get_configuration_metrics_and_pictures(tmp_path: Path) -> None:
    loggers = [
        {"class_path": "TensorBoardLogger", "init_args": {"save_dir": str(tmp_path / "board")}},
        {"class_path": "WandbLogger", "init_args": {"save_dir": str(tmp_path), "offline": True}},
    ]
    (tmp_path / "loggers.yaml").write_text(yaml.safe_dump({"trainer": {"logger": loggers}}))
    for rate in (0.5, 0.25):  # two runs, each with its own configuration
        given = [f"--config={tmp_path / 'loggers.yaml'}", f"--model.init_args.weight_decay={rate}"]
        cli = streets("fit", tmp_path, *given)
        cli.trainer.loggers[2].experiment.finish()
    for version, rate in enumerate((0.5, 0.25)):
        folder = tmp_path / "run" / f"version_{version}"
        assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["init_args"]["weight_decay"] == rate
        assert (folder / "metrics.csv").is_file()
    board = EventAccumulator(str(next((tmp_path / "board").rglob("events.*")).parent))
    board.Reload()
    assert "val/miou" in board.Tags()["scalars"]
    assert board.Tags()["images"] == ["predictions_val"]
    offline = sorted((tmp_path / "wandb").glob("offline-run-*"))
    assert len(offline) == 2
    for folder in offline:
        assert list(folder.glob("*.wandb"))
        assert list(folder.glob("files/media/images/predictions_val*.png"))


def test_a_seed_makes_a_run_repeatable(tmp_path: Path) -> None:
    values = []
    for seed in (1, 1, 2):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        cli = streets("fit", tmp_path, FULL, "--name=run", "--trainer.deterministic=true", f"--seed_everything={seed}")
        values.append({key: value.item() for key, value in cli.trainer.callback_metrics.items()})
    assert values[0] == pytest.approx(values[1], abs=0, nan_ok=True)
    assert values[0]["val/loss"] != values[2]["val/loss"]


def test_bfloat16(tmp_path: Path) -> None:
    metrics = streets("fit", tmp_path, FULL, "--name=run", "--trainer.precision=bf16-mixed").trainer.callback_metrics
    assert all(torch.isfinite(value) for name, value in metrics.items() if "iou/" not in name)  # classes may be absent
    assert metrics["val/energy"] < metrics["val/energy_network"]
