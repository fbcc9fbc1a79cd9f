# SPDX-License-Identifier: Apache-2.0
"""Inputs of benchmarks, and stages that are timed on their own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from gpuprof.bench.models.data import InputSpec, make_source, open_dataset, shape_text
from gpuprof.bench.models.pipeline import Pipeline
from gpuprof.errors import BenchmarkError


def test_the_seed_decides_synthetic_data() -> None:
    images = InputSpec((3, 4))
    first, again, other = (make_source("synthetic", seed).batch(2, images) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert (first.shape, first.dtype) == ((2, 3, 4), np.float32)
    tokens = make_source("synthetic").batch(2, InputSpec((50,), values=7))
    assert (tokens.dtype, tokens.min(), tokens.max()) == (np.int64, 0, 6)


def test_arrays_of_a_file_come_around_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", labels=np.arange(3), inputs=np.arange(6).reshape(3, 2))
    source = make_source(str(tmp_path / "data.npz"))
    np.testing.assert_array_equal(source.batch(2, InputSpec((2,))), [[0, 1], [2, 3]])
    np.testing.assert_array_equal(source.batch(2, InputSpec((2,))), [[4, 5], [0, 1]])
    with refused(BenchmarkError, "input_shape_of_data", "2", "5"):
        source.batch(1, InputSpec((5,)))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "no_array"),
        ({"inputs": np.zeros((0, 3))}, "no_samples"),
        ({"inputs": np.array([{}])}, "cannot_read"),
    ],
)
def test_files_without_samples(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with refused(BenchmarkError, message):
        make_source(str(tmp_path / "data.npz")).batch(1, InputSpec((3,)))
    with refused(BenchmarkError, "no_such_file"):
        make_source(str(tmp_path / "missing.npz")).batch(1, InputSpec((3,)))


def test_what_the_caller_hands_over() -> None:
    source = make_source(np.full(2, number) for number in range(3))
    np.testing.assert_array_equal(source.batch(2, InputSpec((2,))), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(source.batch(2, InputSpec((2,))), [[2, 2], [0, 0]])
    with refused(BenchmarkError, "no_samples"):
        make_source(iter(())).batch(1, InputSpec((2,)))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    from PIL import Image as image

    for name, color in (("cat", (255, 0, 0)), ("dog", (0, 0, 255))):
        (tmp_path / name).mkdir()
        image.new("RGB", (9, 7), color).save(tmp_path / name / "one.png")
        (tmp_path / name / "notes.txt").write_text("no image")
    return tmp_path


@pytest.mark.needs("PIL")
@pytest.mark.parametrize(("shape", "axis"), [((3, 8, 6), 0), ((8, 6, 3), 2)])
def test_images_in_class_folders(images: Path, shape: tuple[int, ...], axis: int) -> None:
    dataset = open_dataset(str(images))
    assert (dataset.classes, dataset.samples) == (("cat", "dog"), 2)
    batch = dataset.rows(0, 2, InputSpec(shape))
    assert (batch.shape, batch.dtype) == ((2, *shape), np.float32)
    red = np.moveaxis(batch, axis + 1, 1)[:, 0].mean(axis=(1, 2))
    np.testing.assert_allclose(red, [(1 - 0.485) / 0.229, -0.485 / 0.229], rtol=1e-5)
    orders = [make_source(str(images), seed).batch(3, InputSpec(shape)) for seed in range(8)]
    assert {np.array_equal(each[0], batch[0]) for each in orders} == {True, False}
    assert all(np.array_equal(each[2], each[0]) for each in orders)


def image_tree(root: Path, *files: str) -> Path:
    """Files that no test decodes, since labels come from the folders."""
    for each in files:
        (root / each).parent.mkdir(parents=True, exist_ok=True)
        (root / each).write_bytes(b"")
    return root


IMAGENET = ("train/n01/a.JPEG", "train/n02/b.JPEG", "train/n03/c.JPEG", "val/n01/d.JPEG", "val/n03/e.JPEG")


def test_splits_are_no_classes(tmp_path: Path) -> None:
    image_tree(tmp_path, *IMAGENET, "Annotations/n01/a.xml")
    with pytest.raises(BenchmarkError) as raised:
        open_dataset(str(tmp_path))
    assert raised.value.code == "dataset_of_splits"
    found = open_dataset(str(tmp_path), split="val")
    # Numbered over all splits: the second class has no image in this one.
    assert (found.classes, list(found.labels)) == (("n01", "n02", "n03"), [0, 2])
    again = open_dataset(**found.asked)
    assert again.identity == found.identity
    assert open_dataset(str(tmp_path / "val")).classes == ("n01", "n03")


def test_a_class_may_have_the_name_of_a_split(tmp_path: Path) -> None:
    image_tree(tmp_path, "exam/a.png", "test/b.png")
    assert open_dataset(str(tmp_path)).classes == ("exam", "test")


@pytest.mark.parametrize(
    ("files", "split", "code"),
    [
        (IMAGENET, "test", "unknown_split"),
        (("cat/a.png",), "val", "unknown_split"),
        (("train/n01/a.png", "val/b.png"), "val", "no_samples"),  # images next to each other, no classes
        (("train/a.png", "val/b.png"), None, "dataset_of_splits"),
    ],
)
def test_splits_that_are_not_there(
    tmp_path: Path, files: tuple[str, ...], split: str | None, code: str
) -> None:
    with pytest.raises(BenchmarkError) as raised:
        open_dataset(str(image_tree(tmp_path, *files)), split=split)
    assert raised.value.code == code
    with pytest.raises(BenchmarkError) as raised:
        open_dataset("synthetic", split="val")
    assert raised.value.code == "unknown_split"


@pytest.mark.needs("PIL")
def test_timing_takes_the_images_of_all_splits(images: Path, tmp_path_factory: Any) -> None:
    root = tmp_path_factory.mktemp("splits")
    images.rename(root / "train")
    assert make_source(str(root)).batch(2, InputSpec((3, 8, 6))).shape == (2, 3, 8, 6)


@pytest.mark.needs("PIL")
def test_images_that_are_none(images: Path) -> None:
    (images / "cat" / "one.png").write_bytes(b"no image")
    with refused(BenchmarkError, "cannot_read", "one.png"):
        make_source(str(images)).batch(2, InputSpec((3, 8, 8)))
    with refused(BenchmarkError, "input_shape_of_images", 5):
        make_source(str(images)).batch(1, InputSpec((5,)))


def test_stages_are_timed_on_their_own() -> None:
    now = itertools.count()
    spent = {"pre": 2, "run": 10, "post": 3}

    def stage(name: str) -> Any:
        def work(value: int) -> int:
            for _ in range(spent[name]):
                next(now)
            return value + 1

        return work

    pipeline = Pipeline(stage("run"), preprocess=stage("pre"), postprocess=stage("post"))
    times = pipeline.measure([0, 0, 0], warmup=1, clock=lambda: float(next(now)))
    assert (times.preprocess_s, times.inference_s) == ([3.0] * 2, [11.0] * 2)
    assert (times.postprocess_s, times.total_s) == ([4.0] * 2, [18.0] * 2)
    assert pipeline(1) == 4
    with refused(BenchmarkError, "no_samples"):
        pipeline.measure([0], warmup=1)


def test_the_pipeline_waits_for_what_a_stage_enqueued() -> None:
    order: list[str] = []
    pipeline = Pipeline(
        lambda item: order.append("run"),
        preprocess=lambda item: order.append("pre"),
        postprocess=lambda item: order.append("post"),
        synchronize=lambda: order.append("wait"),
    )
    pipeline.measure([0])
    assert order == ["pre", "wait", "run", "wait", "post"]


def test_shapes_as_text() -> None:
    assert (shape_text((3, 224, 224)), shape_text(())) == ("3x224x224", "scalar")
