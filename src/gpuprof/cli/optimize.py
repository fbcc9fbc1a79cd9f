# SPDX-License-Identifier: Apache-2.0
"""`gpuprof optimize`: write a quantized, pruned, converted or distilled model as a file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.bench.config import DEVICES, DTYPES
from gpuprof.bench.options import SystemOptions
from gpuprof.cli.measuring import EXIT_MISSED, OccasionalLines, progress_bar
from gpuprof.cli.options import FINITE, WholeNumber, numbers, typed
from gpuprof.errors import BenchmarkError
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.bench.optimize.distillation import Distillation, DistillationSettings
    from gpuprof.bench.optimize.model_file import OptimizedModel

_FOR_STUDENTS = ("student", "steps", "batch_size", "samples", "learning_rate", "temperature")


@dataclass(frozen=True, kw_only=True)
class OptimizeOptions(SystemOptions):
    """The options of `gpuprof optimize`; those after `student` are None unless they were given."""

    model: str
    recipe: str
    out: str
    as_json: bool
    student: str | None
    steps: int | None
    batch_size: int | None
    samples: int | None
    learning_rate: float | None
    temperature: float | None

    def training(self) -> DistillationSettings:
        """Return the settings of the training. Raises BenchmarkError."""
        from gpuprof.bench.optimize.distillation import DistillationSettings

        given = {name: getattr(self, name) for name in _FOR_STUDENTS[1:]}
        return DistillationSettings(**{name: value for name, value in given.items() if value is not None})


@click.command("optimize")
@click.argument("model", metavar="MODEL")
@click.option(
    "--recipe",
    required=True,
    metavar="NAME",
    help="Apply a recipe, as in gpuprof bench: int8-dynamic, pruned:0.5, bf16, onnx-int8, ... distilled "
    "trains --student on the outputs of MODEL.",
)
@click.option(
    "-o", "--out", required=True, metavar="FILE", help="Write this file: .pt (TorchScript), .pt2, .onnx."
)
@click.option(
    "--data",
    default="synthetic",
    show_default=True,
    metavar="D",
    help="Calibrate or train with D: synthetic, a folder of images in class folders, or a .npz file.",
)
@click.option(
    "--input-shape",
    callback=numbers,
    metavar="3,224,224",
    help="Set the shape of one sample. Default: that of the model or data.",
)
@click.option(
    "--dtype", type=click.Choice(DTYPES), help="Convert weights to this dtype. Default: that of the model."
)
@click.option(
    "--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Use this device."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Set the seed of weights and data.")
@click.option("--trust-pickle", is_flag=True, help="Load pickled files and .pt2, which can run any code.")
@click.option("--student", metavar="MODEL", help="With distilled: train this model.")
@click.option(
    "--steps", type=WholeNumber(min=1), metavar="N", help="With distilled: train N steps. Default: 200."
)
@click.option(
    "--batch-size",
    type=WholeNumber(min=1),
    metavar="N",
    help="With distilled: train with batches of N samples. Default: 32.",
)
@click.option(
    "--samples",
    type=WholeNumber(min=1),
    metavar="N",
    help="With distilled: use N samples, a fifth of them to measure with. Default: 1024.",
)
@click.option(
    "--learning-rate", type=FINITE, metavar="X", help="With distilled: learning rate of Adam. Default: 0.001."
)
@click.option(
    "--temperature",
    type=FINITE,
    metavar="T",
    help="With distilled: divide scores of classes by T. Default: 4.",
)
@click.option("--json", "as_json", is_flag=True, help="Print machine-readable results.")
@typed(OptimizeOptions)
def optimize(options: OptimizeOptions) -> None:
    """Change MODEL by a recipe, write the result to a file, and compare its outputs with those of MODEL.

    MODEL is as in gpuprof bench. The file is read back and checked before it gets its name.
    """
    from gpuprof.bench.optimize.model_file import DISTILLED, write_optimized

    if options.recipe != DISTILLED:
        _refuse_training_options(options)
        written = write_optimized(options.spec(options.model), options.recipe, Path(options.out))
    else:
        written = _distilled(options)
    if options.as_json:
        click.echo(json.dumps(dataclasses.asdict(written), indent=2))
    else:
        click.echo(_text(written, options))
    if written.distillation is not None and not written.distillation.has_learned:
        click.get_current_context().exit(EXIT_MISSED)


def _refuse_training_options(options: OptimizeOptions) -> None:
    for name in _FOR_STUDENTS:
        if getattr(options, name) is not None:
            raise BenchmarkError(
                "not_distilled", f"--{name.replace('_', '-')} needs --recipe distilled", hint="omit it"
            )


def _distilled(options: OptimizeOptions) -> OptimizedModel:
    from gpuprof.bench.optimize.model_file import write_distilled

    if options.student is None:
        raise BenchmarkError(
            "no_student",
            "--recipe distilled needs --student",
            hint="name the model to train, as file.py:build",
        )
    lines = OccasionalLines(partial(click.echo, err=True))
    with progress_bar() as bar:
        task = bar.add_task("training", total=None)

        def show(step: int, steps: int, loss: float) -> None:
            text = f"step {step} of {steps}: loss {loss:.3g}"
            bar.update(task, description=text, completed=step, total=steps)
            if bar.disable:
                lines.add(text)

        return write_distilled(
            options.spec(options.model),
            options.spec(options.student),
            Path(options.out),
            options.training(),
            show,
        )


def _text(written: OptimizedModel, options: OptimizeOptions) -> str:
    from gpuprof.text.sanitize import escape_text

    lines = [f"wrote {written.path}: {written.technique}, {written.framework}"]
    lines += [f"{label:<11} {value}" for label, value in _figures(written)]
    if written.has_random_weights:
        lines.append(f"! {written.original} has random weights: use a model with trained weights")
    if written.distillation is not None and not written.distillation.has_learned:
        lines.append(
            "! the student has not learned; hint: use more --steps, another --learning-rate, or real --data"
        )
    variants = shlex.quote(f"original:{options.model},optimized:{written.path}")
    trust = " --trust-pickle" if written.path.endswith(".pt2") else ""
    shape = "" if options.input_shape is None else f" --input-shape {','.join(map(str, options.input_shape))}"
    lines.append(f"compare     gpuprof compare {variants}{shape}{trust}")
    return "\n".join(map(escape_text, lines))


_SHOWN = {
    "quantized_layers": "quantized",
    "quantized_by": "by",
    "calibration": "calibration",
    "zeros": "zeros",
}


def _figures(written: OptimizedModel) -> Iterator[tuple[str, str]]:
    """Yield the lines of a written model: a label and a value."""
    from gpuprof.text.units import format_bytes, format_count, format_share

    if written.original_bytes and written.model_bytes:
        sizes = map(format_bytes, (written.original_bytes, written.model_bytes))
        yield "weights", f"{' to '.join(sizes)} (1/{written.original_bytes / written.model_bytes:.3g})"
    if (
        written.original_parameters != written.parameters
        and written.parameters
        and written.original_parameters
    ):
        yield (
            "parameters",
            f"{format_count(written.original_parameters)} to {format_count(written.parameters)}",
        )
    yield "file", format_bytes(written.file_bytes)
    if written.difference is not None:
        yield (
            "outputs",
            f"{format_share(written.difference)} from those of {written.original} (relative norm)",
        )
    for key, label in _SHOWN.items():
        if key in written.details:
            yield label, written.details[key]
    if written.fixed_batch_size is not None:
        yield "batch size", f"{written.fixed_batch_size} only: the model has it as a constant"
    if written.distillation is not None:
        yield from _training(written.distillation)


def _training(reached: Distillation) -> Iterator[tuple[str, str]]:
    from gpuprof.text.units import format_share

    early = "" if reached.steps == reached.asked_steps else f" of {reached.asked_steps}, interrupted"
    yield "training", f"{counted(reached.steps, 'step')}{early}"
    samples = f"{reached.held_out_samples:,} held-out samples"
    yield "loss", f"{reached.loss_before:.3g} to {reached.loss_after:.3g} on {samples}"
    if reached.agreement_after is not None:
        before, after = map(format_share, (reached.agreement_before, reached.agreement_after))
        yield "same class", f"{before} to {after} of {samples}"
