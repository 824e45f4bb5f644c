"""Diffs of others' training scripts: how many lines they write, and that the scripts train and resume with them.

The scripts of other projects lie in PICSTORE_SCRIPTS: main.py (pytorch/examples, imagenet), train.py (timm),
main_dino.py, utils.py, vision_transformer.py (facebookresearch/dino), train_unconditional.py (diffusers), and the
checkouts mae and open_clip. Without it their tests are skipped, as are those of libraries that are not installed.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest
from programs import run_program

import picstore

DIFFS = Path(__file__).parents[1] / "docs" / "diffs"
SCRIPTS = Path(__file__).parent / "fixtures" / "scripts"
# Lines that are written, at most, and lines of the script that go.
WRITTEN = {
    "imagenet": 30,
    "timm": 25,
    "dino": 40,
    "mae": 25,
    "openclip": 25,
    "diffusers": 25,
    "ultralytics": 25,
    "lightning": 2,
    "trainer": 2,
    "keras": 25,
    "fastai": 25,
}
Make = Callable[..., Path]


def lines_of(name: str, sign: str) -> list[str]:
    lines = (DIFFS / f"{name}.diff").read_text().splitlines()
    return [line for line in lines if line.startswith(sign) and not line.startswith(3 * sign)]


@pytest.mark.parametrize("name", WRITTEN)
def test_a_diff_writes_at_most_so_many_lines_and_the_page_says_how_many(name: str) -> None:
    written, gone = (len(lines_of(name, sign)) for sign in "+-")
    assert 0 < written <= WRITTEN[name]
    page = (DIFFS.parent / "frameworks.md").read_text()
    before = page[: page.index(f"<!-- begin copied docs/diffs/{name}.diff -->")]
    section = re.split(r"\n##+ ", before)[-1]
    assert re.search(rf"\badds? {written} lines\s+and\s+deletes?\s+{gone or 'none'}\b", " ".join(section.split()))


def test_each_diff_is_counted() -> None:
    assert {path.stem for path in DIFFS.glob("*.diff")} == set(WRITTEN)


def patched(name: str, *files: Path, folder: Path) -> Path:
    """Copy a script, the first file, and what it imports to a folder, and apply its diff."""
    folder.mkdir()
    copies = [Path(shutil.copy(file, folder)) for file in files]
    diff = (DIFFS / f"{name}.diff").read_text()
    subprocess.run(["patch", "--quiet", copies[0].name], input=diff, text=True, cwd=folder, check=True)
    return copies[0]


def foreign(name: str, *names: str, folder: Path) -> Path:
    given = os.environ.get("PICSTORE_SCRIPTS")
    if given is None:
        pytest.skip("needs the scripts of other projects: PICSTORE_SCRIPTS is not set")
    return patched(name, *(Path(given) / each for each in names), folder=folder)


def run(*command: object, cwd: Path, modules: Sequence[str] = ()) -> str:
    """What a program that succeeds writes; ``modules`` are what it imports that takes seconds."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "WANDB_DISABLED": "true"}
    with socket.create_server(("127.0.0.1", 0)) as free:
        environment["MASTER_PORT"] = str(free.getsockname()[1])
    return run_program(*command, cwd=cwd, environment=environment, modules=modules)


@pytest.fixture
def data(make_dataset: Make) -> Path:
    """A folder with the data sets train and val."""
    train = make_dataset(24, name="train")
    make_dataset(8, name="val")
    return train.parent


@pytest.mark.slow
def test_lightnings_program_resumes_in_mid_epoch_to_the_same_losses(data: Path, tmp_path: Path) -> None:
    program = patched("lightning", SCRIPTS / "lightning_before.py", folder=tmp_path / "program")
    start = partial(run, program, data / "train", cwd=tmp_path, modules=["lightning"])
    whole = re.findall(r"step \d+ loss \S+", start("a"))
    assert len(whole) == len(set(whole)) == 12
    resumed = start("b", "--resume", "a/step=3.ckpt")
    assert re.findall(r"step \d+ loss \S+", resumed) == whole[3:]


@pytest.mark.slow
def test_the_trainers_program_resumes_in_mid_epoch_to_the_same_losses(data: Path, tmp_path: Path) -> None:
    program = patched("trainer", SCRIPTS / "trainer_before.py", folder=tmp_path / "program")
    options = ["--output_dir", "run", "--num_train_epochs", 2, "--per_device_train_batch_size", 1, "--use_cpu", "True"]
    options += ["--save_steps", 4, "--report_to", "none", "--disable_tqdm", "True"]
    start = partial(run, program, data / "train", *options, cwd=tmp_path, modules=["transformers.trainer"])
    whole = re.findall(r"loss \d\.\d{9}", start())
    assert len(whole) == len(set(whole)) == 12
    resumed = start("--resume_from_checkpoint", "run/checkpoint-4")
    assert re.findall(r"loss \d\.\d{9}", resumed) == whole[4:]


@pytest.mark.slow
def test_main_of_pytorchs_examples_resumes_to_the_same_losses(data: Path, tmp_path: Path) -> None:
    script = foreign("imagenet", "main.py", folder=tmp_path / "program")
    options = [data, "-a", "shufflenet_v2_x0_5", "-b", 8, "--lr", 0.01, "-p", 1, "--seed", 1]

    def losses(*more: object) -> list[str]:
        return re.findall(r"Epoch: \[1\].* Loss (\S+)", run(script, *options, *more, cwd=tmp_path).replace("\t", " "))

    whole = losses("--epochs", 2)
    assert len(whole) == 3
    assert losses("--epochs", 1) == []
    assert losses("--epochs", 2, "--resume", "checkpoint.pth.tar") == whole


@pytest.mark.slow
def test_timms_train_resumes_to_the_same_loss(data: Path, tmp_path: Path) -> None:
    script = foreign("timm", "train.py", folder=tmp_path / "program")
    options = ["--data-dir", data, "--val-split", "val", "--model", "resnet10t", "--num-classes", 6, "--img-size", 64]
    options += ["-b", 8, "--epochs", 2, "--warmup-epochs", 0, "--cooldown-epochs", 0, "--opt", "sgd", "--lr", 0.01]
    options += ["--device", "cpu", "--aa", "rand-m9", "--output", "out", "--experiment"]

    def losses(name: str) -> list[str]:
        with (tmp_path / "out" / name / "summary.csv").open() as file:
            return [row["train_loss"] for row in csv.DictReader(file)]

    run(script, *options, "whole", cwd=tmp_path)
    assert len(losses("whole")) == 2
    run(script, *options, "resumed", "--resume", "out/whole/checkpoint-0.pth.tar", cwd=tmp_path)
    assert losses("resumed") == losses("whole")[1:]


@pytest.mark.slow
def test_dino_resumes_to_the_same_loss(data: Path, tmp_path: Path) -> None:
    """On the CPU, by a program that keeps there what the script moves to a GPU."""
    names = "main_dino.py", "utils.py", "vision_transformer.py"
    script = foreign("dino", *names, folder=tmp_path / "program")
    options = ["--arch", "vit_tiny", "--patch_size", 32, "--data_path", data / "train", "--batch_size_per_gpu", 8]
    options += ["--epochs", 2, "--warmup_epochs", 0, "--warmup_teacher_temp_epochs", 0, "--use_fp16", "false"]
    options += ["--local_crops_number", 2, "--out_dim", 64, "--drop_path_rate", 0, "--saveckp_freq", 1, "--output_dir"]

    def losses(name: str) -> list[float]:
        lines = (tmp_path / name / "log.txt").read_text().splitlines()
        return [json.loads(line)["train_loss"] for line in lines]

    run(SCRIPTS / "on_cpu.py", script, *options, "whole", cwd=tmp_path)
    (tmp_path / "resumed").mkdir()
    shutil.copy(tmp_path / "whole" / "checkpoint0000.pth", tmp_path / "resumed" / "checkpoint.pth")
    run(SCRIPTS / "on_cpu.py", script, *options, "resumed", cwd=tmp_path)
    assert len(losses("whole")) == 2 and losses("resumed") == losses("whole")[1:]


def pixels(output: str) -> list[str]:
    return re.findall(r"pixels \d+ -?\d+\.\d+", output)


def checkout(name: str, project: str, script: str, folder: Path) -> Path:
    """Copy another project's checkout to a folder and apply the diff to its script."""
    given = os.environ.get("PICSTORE_SCRIPTS")
    if given is None:
        pytest.skip("needs the scripts of other projects: PICSTORE_SCRIPTS is not set")
    shutil.copytree(Path(given) / project, folder, ignore=shutil.ignore_patterns(".git"))
    diff = (DIFFS / f"{name}.diff").read_text()
    subprocess.run(["patch", "--quiet", script], input=diff, text=True, cwd=folder, check=True)
    return folder / script


@pytest.mark.slow
@pytest.mark.parametrize("name", ["keras", "fastai"])
def test_a_resumed_epoch_of_keras_and_fastai_has_the_same_losses(name: str, data: Path, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:  # importing Keras needs a backend's name
        pytest.skip(f"needs {name}")
    program = patched(name, SCRIPTS / f"{name}_before.py", folder=tmp_path / "program")
    folders = [data / "train"] if name == "keras" else [data / "train", data / "val"]

    def losses(*options: object) -> list[str]:
        return re.findall(r"loss \d+\.\d+", run(program, *folders, *options, cwd=tmp_path))

    whole = losses()
    assert len(whole) == 12
    assert losses("--epochs", 1) == whole[:6]
    assert losses("--resume", "model.keras" if name == "keras" else "last", "--first", 1) == whole[6:]


@pytest.mark.slow
def test_a_classifier_of_ultralytics_resumes_to_the_same_batches(data: Path, tmp_path: Path) -> None:
    pytest.importorskip("ultralytics")
    program = patched("ultralytics", SCRIPTS / "ultralytics_before.py", folder=tmp_path / "program")
    start = partial(run, SCRIPTS / "pixels.py", program, data, cwd=tmp_path)
    whole = pixels(start("epochs=2", "batch=4", "save_period=1"))
    assert len(whole) == len([*range(6), "val"]) * 2
    shutil.copy(next(tmp_path.glob("**/epoch0.pt")), tmp_path / "first.pt")
    assert pixels(start("--model", "first.pt", "--resume")) == whole[7:]


@pytest.mark.slow
def test_mae_resumes_to_the_same_batches(data: Path, tmp_path: Path) -> None:
    """With today's timm, on the CPU, by a program that stands between."""
    script = checkout("mae", "mae", "main_pretrain.py", tmp_path / "program")
    options = ["--data_path", data, "--batch_size", 8, "--model", "mae_vit_base_patch16", "--device", "cpu"]
    options += ["--epochs", 2, "--warmup_epochs", 0, "--output_dir"]
    start = partial(run, SCRIPTS / "mae_today.py", script, *options, cwd=tmp_path)
    whole = pixels(start("whole"))
    assert len(whole) == 6
    assert pixels(start("resumed", "--resume", "whole/checkpoint-0.pth")) == whole[3:]


@pytest.mark.slow
def test_openclip_resumes_to_the_same_batches(data: Path, tmp_path: Path) -> None:
    for library in ("ftfy", "pandas", "webdataset"):
        pytest.importorskip(library)
    script = checkout("openclip", "open_clip", "src/open_clip_train/data.py", tmp_path / "program").with_name("main.py")
    towers = {"vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16}}
    towers["text_cfg"] = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1}
    config = tmp_path / "program" / "src" / "open_clip" / "model_configs" / "tiny.json"
    config.write_text(json.dumps({"embed_dim": 16, **towers}))
    train = picstore.Dataset(data / "train")
    train.with_columns({"caption": [f"picture {k}" for k in range(len(train))]}).save()
    options = ["--train-data", data / "train", "--model", "tiny", "--batch-size", 8, "--epochs", 2, "--warmup", 1]
    options += ["--workers", 0, "--device", "cpu", "--precision", "fp32", "--logs", "logs", "--name"]
    start = partial(run, SCRIPTS / "pixels.py", script, *options, cwd=tmp_path)
    whole = pixels(start("whole"))
    assert len(whole) == 6
    assert pixels(start("resumed", "--resume", "logs/whole/checkpoints/epoch_1.pt")) == whole[3:]


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3])
def test_diffusers_script_resumes_in_mid_epoch_to_the_same_batches(data: Path, tmp_path: Path, step: int) -> None:
    for library in ("diffusers", "datasets", "tensorboard"):
        pytest.importorskip(library)
    script = foreign("diffusers", "train_unconditional.py", folder=tmp_path / "program")
    down, up = ["DownBlock2D"] * 2, ["UpBlock2D"] * 2
    unet = {"_class_name": "UNet2DModel", "sample_size": 32, "in_channels": 3, "out_channels": 3, "norm_num_groups": 4}
    unet |= {"layers_per_block": 1, "block_out_channels": [8, 8], "down_block_types": down, "up_block_types": up}
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet" / "config.json").write_text(json.dumps(unet))
    options = ["--train_data_dir", data / "train", "--model_config_name_or_path", "unet", "--resolution", 32]
    options += ["--random_flip", "--train_batch_size", 8, "--num_epochs", 2, "--ddpm_num_steps", 10]
    options += ["--ddpm_num_inference_steps", 2, "--checkpointing_steps", 1, "--lr_warmup_steps", 0]
    options += ["--eval_batch_size", 1, "--output_dir", "run"]
    start = partial(run, SCRIPTS / "pixels.py", script, *options, cwd=tmp_path)
    whole = pixels(start())
    assert len(whole) == 6
    assert pixels(start("--resume_from_checkpoint", f"checkpoint-{step}")) == whole[step:]
