# SPDX-License-Identifier: Apache-2.0
"""Folders of images: a folder for each class, or such folders for each split, as ImageNet has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuprof.errors import BenchmarkError

IMAGE_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """Images with the number of their class, in order of the names of classes and files."""

    classes: tuple[str, ...]
    files: tuple[tuple[Path, int], ...]


def find_images(folder: Path, split: str | None = None, *, needs_labels: bool = True) -> ImageFiles:
    """Return the images of a folder, or of one of its splits.

    Classes are numbered over all splits, since one may lack some. Without `needs_labels` a folder of splits
    is taken as a whole. Raises BenchmarkError where a split has to be named, and where there are no images.
    """
    splits = split_names(folder)
    if split is not None:
        return _of_split(folder, splits, split)
    if splits and needs_labels:
        raise BenchmarkError(
            "dataset_of_splits",
            f"--dataset {folder}: the folders {', '.join(splits)} are splits, not classes",
            hint=f"choose one, as in --split {_evaluated(splits)}",
        )
    return _checked(folder, _class_folders(folder))


def split_names(folder: Path) -> list[str]:
    """Return the names of a folder's splits; none where its folders are classes."""
    folders = _folders(folder)
    splits = [each.name for each in folders if each.name.lower() in _SPLITS]
    others = (each for each in folders if each.name.lower() not in _SPLITS)
    return [] if any(next(_images(each), None) for each in others) else splits


def _of_split(folder: Path, splits: list[str], split: str) -> ImageFiles:
    if split not in splits:
        hint = f"use one of {', '.join(splits)}" if splits else "omit --split"
        known = "no such split" if splits else "it has no splits"
        raise BenchmarkError("unknown_split", f"--split {split}: {folder}: {known}", hint=hint)
    classes = sorted({each for name in splits for each in _class_folders(folder / name)})
    return _checked(folder / split, classes)


def _checked(folder: Path, classes: list[str]) -> ImageFiles:
    files = [
        (file, label)
        for label, name in enumerate(classes)
        for file in sorted(_images(folder / name), key=str)
    ]
    if not files:
        raise BenchmarkError(
            "no_samples", f"{folder}: it holds no samples", hint="put images into a folder for each class"
        )
    return ImageFiles(tuple(classes), tuple(files))


def _evaluated(splits: list[str]) -> str:
    """Return the split that models are judged on, as a rule."""
    return next((each for each in splits if each.lower().startswith(("val", "dev", "test"))), splits[0])


def _class_folders(folder: Path) -> list[str]:
    return [each.name for each in _folders(folder)]


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir())


def _images(folder: Path) -> Iterator[Path]:
    found = folder.rglob("*") if folder.is_dir() else iter(())
    return (each for each in found if each.suffix.lower() in IMAGE_SUFFIXES)
