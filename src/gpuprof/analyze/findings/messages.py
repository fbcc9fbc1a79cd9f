# SPDX-License-Identifier: Apache-2.0
"""The texts of findings: one sentence, a repair as code, names of figures, and what rules lack."""

from __future__ import annotations

from gpuprof.text.messages import Messages, Values
from gpuprof.text.sanitize import escape_text
from gpuprof.text.units import (
    counted,
    format_duration,
    format_missing_ranks,
    format_quantity,
    format_share,
)

_MOSTLY = 0.5
_FORMATS = {"ns": format_duration, "quantity": format_quantity}


def _loader_title(values: Values) -> str:
    of = f" of {values['dataset']}" if values["dataset"] else ""
    function, busy = values["fetch_function"], values["busy"]
    if values["is_in_process"]:
        where = f", mostly in {function}" if (values["fetch_fraction"] or 0.0) >= _MOSTLY else ""
        is_full = values["suggested"] is None
        why = "workers would take its processors" if is_full else "the DataLoader has no workers"
        return f"The main process loads the data{of} itself{where}: {why}"
    workers = values["workers"]
    who = "the DataLoader's workers" if workers is None else counted(workers, "DataLoader worker")
    waits = f"The main process waits for {who}{of}"
    if busy is None:
        return waits
    verb, whose = ("spends", "its") if workers == 1 else ("spend", "their")
    if busy < _MOSTLY:
        return f"{waits}, which {verb} {format_share(1 - busy)} of {whose} time waiting for work"
    return f"{waits}, which {verb} {format_share(values['fetch_fraction'])} of {whose} time in {function}"


def _loader_fix(values: Values) -> str:
    """Return a loader with workers, and what is left to do with the function that fetches."""
    workers, names = values["suggested"], _names(values)
    function = names["fetch_function"] or names["item"]
    call = f": it waits in {names['fetch_call']}" if _waits_in_call(values) else ""
    faster = f"make {function} faster{call}" if function else "make a fetch of the dataset cheaper"
    if workers is None:
        if values["busy"] is not None and values["busy"] < _MOSTLY:
            other = "" if values["persistent"] else "DataLoader(..., persistent_workers=True), or "
            return f"{other}a larger prefetch_factor"
        return f"{faster}; cache its results, or move work out of it"
    # The other arguments, such as the dataset and shuffle=True, are to remain.
    loader = f"DataLoader(..., num_workers={workers}, persistent_workers=True)"
    if values["is_in_process"]:
        return loader
    if values["busy"] is None:
        known = [each for each in (names["item"], names["collate"]) if each]
        calls = f": it calls {' and '.join(known)}" if known else ""
        return f"{loader}\n# the time inside a worker was not recorded{calls}"
    return f"{loader}\n# or {faster}"


def _names(values: Values) -> dict[str, str | None]:
    """Return the names of the program, each on one line: a repair has several."""
    names = ("fetch_function", "fetch_call", "item", "collate", "dataset")
    return {name: None if values[name] is None else escape_text(values[name]) for name in names}


def _waits_in_call(values: Values) -> bool:
    return values["fetch_call"] is not None and (values["fetch_waiting"] or 0.0) >= _MOSTLY


def _where(values: Values) -> str:
    if values.get("span") is not None:
        return f"span {values['span']}"
    if values.get("line") is not None:
        return f"{values['function']}, line {values['line']}"
    return str(values["function"]) if values.get("function") else "the program's own code"


def _logging_title(values: Values) -> str:
    where = _where(values)
    if values.get("span") is None and values.get("caller") is not None:  # missing in older results
        where += f", called by {values['caller']}"
    if values["reads"] >= 1:
        reads = round(values["reads"])
        every = max(round(values.get("all_reads", 0)), reads)  # missing in older results
        what = f"Each step reads {counted(every, 'value')} of tensors with .item()"
        if values.get("span") is None and values.get("function") and not _costs_reads(values):
            # Of a sample, only the end has a known function: short reads before it may be elsewhere.
            read = counted(every, "value")
            return f"Each step spends time in {where}, more than for reading {read} of tensors with .item()"
        return f"{what} in {where}" if every == reads else f"{what}, about {reads} of them in {where}"
    return f"Each step writes logs in {where}"


def _costs_reads(values: Values) -> bool:
    """Whether the reads themselves are most of the time; also for older results, which do not have it."""
    return values["reads"] >= 1 and float(values.get("read_share", 1.0)) >= _MOSTLY


def _logging_fix(values: Values) -> str:
    fix = "log every 50th step only"
    if not _costs_reads(values):
        return fix
    return f"{fix}, or collect tensors and read them together:\ntorch.stack(values).tolist()"


def _collections_title(values: Values) -> str:
    if values["in_each_step"]:
        return "Python's garbage collector collects all objects in each step"
    return (
        f"Python's garbage collector pauses the main thread ({counted(values['collections'], 'collection')})"
    )


def _collections_fix(values: Values) -> str:
    if values["in_each_step"]:
        return "remove gc.collect() from the step; or, before the first step:\ngc.collect()\ngc.freeze()"
    return "# before the first step\ngc.collect()\ngc.freeze()"


def _waiting_title(values: Values) -> str:
    return f"The main thread waits in {values['function']}, called by {values['caller']}"


def _synchronization_title(values: Values) -> str:
    where = f" in {values['name']}" if values["name"] else ""
    return f"The host waits for the GPU{where} ({counted(values['waits'], 'time')})"


def _subnormals_title(values: Values) -> str:
    factor = "much slower" if values["factor"] is None else f"{values['factor']:.1f} times slower"
    more = "" if values["layers"] == 1 else f" and {counted(values['layers'] - 1, 'other layer')}"
    return (
        f"{values['operator']} is {factor} in {values['layer']}{more} than in {values['fast_layer']}, with "
        "the same shapes: subnormal numbers?"
    )


def _small_batch_fix(values: Values) -> str:
    size = values["batch_size"]
    return f"DataLoader(..., batch_size={2 * size if size else '2 * batch_size'}), or torch.compile(model)"


def _allocations_title(values: Values) -> str:
    allocated, freed = counted(values["allocated"], "allocation"), counted(values["freed"], "release")
    if values["freed"]:
        return (
            f"PyTorch returns GPU memory to the driver in steps and allocates it again ({allocated}, {freed})"
        )
    return f"PyTorch allocates more GPU memory from the driver after the warm-up ({allocated})"


def _allocations_fix(values: Values) -> str:
    grow = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    if values["freed"]:
        return (
            f"remove torch.cuda.empty_cache() from steps; if the memory is full, a smaller batch, or\n{grow}"
        )
    return f"{grow}  # or inputs of the largest shape in the first step"


def _lookups_title(values: Values) -> str:
    if values["has_dense_gradient"]:
        return (
            "Gradients of embeddings are tables of the full size: a step writes all rows and uses few of them"
        )
    return f"Lookups of rows in tensors are {format_share(values['share'])} of the steps"


def _lookups_fix(values: Values) -> str:
    if values["has_dense_gradient"]:
        return "torch.nn.Embedding(..., sparse=True), with torch.optim.SparseAdam, SGD or Adagrad"
    return "look up each row once: torch.unique(indices, return_inverse=True); or hold the table in bfloat16"


def _padding_title(values: Values) -> str:
    share = format_share(values["share"])
    return f"{share} of the tokens in the first batch are padding ({values['argument']})"


def _padding_fix(values: Values) -> str:
    if values["trimmed_share"] >= values["share"] / 2:
        return "pad each batch to its own longest sequence, as DataCollatorWithPadding does"
    return "batches of sequences with similar lengths, as group_by_length=True, or packed sequences"


def _slow_rank_title(values: Values) -> str:
    others = "the other rank waits" if values["others"] == 1 else f"{values['others']} other ranks wait"
    function = values.get("function")  # missing in older results
    where = "" if function is None else f", mostly because of {function}"
    if values.get("caller") is not None:
        where += f", called by {values['caller']}"
    return f"Rank {values['rank']} is slow: {others} for it in collective operations{where}"


def _slow_rank_fix(values: Values) -> str:
    fix = "give each rank the same amount of work, as batches of equal length"
    if values.get("function") is None:
        return fix
    if str(values["function"]).startswith("time.sleep"):
        return f"remove the sleep; or {fix}"
    return f"make {escape_text(values['function'])} as fast as on the other ranks; or {fix}"


TITLES = Messages(
    {
        "loader": _loader_title,
        "recompilations": "torch.compile compiles in steps after the warm-up ({compilations:#time})",
        "collections": _collections_title,
        "logging": _logging_title,
        "allocations": _allocations_title,
        "gpu_synchronization": _synchronization_title,
        "pageable_copies": "Copies between host and GPU use pageable memory ({copies:#copy/copies})",
        "optimizer": (
            "{name} updates {parameters:#parameter} one after the other, with several operators for each: "
            "it is not fused"
        ),
        "attention": "Attention is calculated by a chain of operators, not by one ({calls:#call})",
        "subnormals": "{operator} calculates with numbers below the normal range, which are slow",
        "zeroing": "Gradients are set to zero in each step, and the backward pass adds to them",
        "accumulation": (
            "Ranks synchronize gradients in each backward pass; a step has {passes:.3g} of them and needs "
            "one synchronization"
        ),
        "buckets": (
            "Ranks synchronize gradients after the backward pass: {collectives:.2g} operations a step are "
            "too few to overlap with it"
        ),
        "slow_operators": _subnormals_title,
        "fp32_norms": (
            "{type} calculates in fp32 ({layers:#layer}), and the matrix products of the model in {dtype}"
        ),
        "lookups": _lookups_title,
        "layout_copies": "cuDNN copies tensors to another memory layout ({kernels:#kernel})",
        "fp32_products": "Matrix products run in fp32 without tensor cores ({kernels:#kernel})",
        "small_kernels": "Chains of elementwise kernels could be fused ({kernels:#kernel})",
        "throttling": (
            "The GPU reduces its clock to {clock:percent} because of heat or power in {share:percent} of the "
            "readings"
        ),
        "interpreter_lock": (
            "The main thread waits for Python's interpreter lock while thread {thread} runs {function}"
        ),
        "waiting": _waiting_title,
        "launches": "The GPU waits for launches of the host in {idle_share:percent} of the time in steps",
        "slow_rank": _slow_rank_title,
        "threads": "Operators use {threads:#thread} on {processors:#processor}",
        "small_batch": (
            "Operators are too small: {share:percent} of the time in the model does not depend on the batch "
            "size"
        ),
        "padding": _padding_title,
        "unused_import": "{package} is imported, and no sample is in its Python functions afterwards",
        "startup": "{function} takes a large part of the time before the first step",
    },
    _FORMATS,
)
FIXES = Messages(
    {
        "loader": _loader_fix,
        "recompilations": (
            "torch.compile(model, dynamic=True)\n"
            "# TORCH_LOGS=recompiles prints what has changed, such as a shape or a number"
        ),
        "collections": _collections_fix,
        "logging": _logging_fix,
        "allocations": _allocations_fix,
        "gpu_synchronization": "keep the values on the GPU, and read them every 50th step only",
        "pageable_copies": 'DataLoader(..., pin_memory=True); tensor.to("cuda", non_blocking=True)',
        "optimizer": lambda values: (
            f"torch.optim.{values['name']}(parameters, {values.get('option', 'fused')}=True)"
        ),
        "attention": (
            "remove sdpa_kernel(SDPBackend.MATH); attention masks without requires_grad, dropout_p=0 on a CPU"
        ),
        "subnormals": "torch.set_flush_denormal(True)",
        "waiting": lambda values: (
            "remove the sleep, or sleep in another thread"
            if values["is_sleep"]
            else "do the work that is waited for earlier, in another thread or process"
        ),
        "zeroing": "optimizer.zero_grad(set_to_none=True)",
        "accumulation": (
            "with model.no_sync():  # around all but the last backward pass of a step\n    loss.backward()"
        ),
        "buckets": "DistributedDataParallel(model, bucket_cap_mb=5)",
        "slow_operators": (
            "torch.set_flush_denormal(True)\n"
            "# does not help all operators: look at the values that reach the slow layer"
        ),
        "fp32_norms": (
            "model.to(torch.{dtype}) for these layers, too, and torch.nn.functional.rms_norm or layer_norm, "
            "which calculate in fp32 inside"
        ),
        "lookups": _lookups_fix,
        "layout_copies": (
            "model.to(memory_format=torch.channels_last)\ninputs.to(memory_format=torch.channels_last)"
        ),
        "fp32_products": 'torch.set_float32_matmul_precision("high")',
        "small_kernels": "torch.compile(model)",
        "throttling": "improve the cooling, or raise the power limit: nvidia-smi -q -d PERFORMANCE,POWER",
        "interpreter_lock": (
            "run this function in a process: torch.multiprocessing, or workers of the DataLoader"
        ),
        "padding": _padding_fix,
        "small_batch": _small_batch_fix,
        "slow_rank": _slow_rank_fix,
        "launches": 'torch.compile(model, mode="reduce-overhead")',
        "threads": "torch.set_num_threads({processors})",
        "unused_import": "import {package} where it is used, inside the function",
        "startup": "save the result of this function, and load it at the next start",
    }
)
RULES = Messages(
    {
        "loader": "data loader",
        "recompilations": "compilations in steps",
        "collections": "garbage collections",
        "logging": "logging and reading of values",
        "allocations": "allocations of GPU memory in steps",
        "gpu_synchronization": "waits for the GPU",
        "pageable_copies": "copies of pageable memory",
        "optimizer": "optimizer that is not fused",
        "attention": "attention as a chain of operators",
        "subnormals": "numbers below the normal range",
        "zeroing": "gradients set to zero",
        "accumulation": "synchronization of gradients in each backward pass",
        "buckets": "synchronization of gradients after the backward pass",
        "waiting": "sleeps and waits of the main thread",
        "interpreter_lock": "waits for the interpreter lock",
        "launches": "launch-bound GPU",
        "slow_operators": "operators that are slower in one layer",
        "fp32_norms": "normalization in fp32",
        "lookups": "lookups of rows",
        "layout_copies": "copies between memory layouts",
        "fp32_products": "products in fp32",
        "small_kernels": "chains of small kernels",
        "throttling": "reduced GPU clock",
        "small_batch": "too small batch",
        "padding": "padding",
        "slow_rank": "slow rank",
        "threads": "more threads than processors",
        "unused_import": "unused imports",
        "startup": "slow start-up",
    }
)
_WITH_PYTHON = "record with gpuprof run without --no-python, or with gpuprof.profile(python=True)"
MISSING = Messages(
    {
        "older_run": "the run lacks what --work records now; record it again",
        "steps": "the program has no steps; mark them with gpuprof.span('step')",
        "operators": "operators were not recorded",
        "stacks": f"Python stacks were not sampled; {_WITH_PYTHON}",
        "native_sampler": (
            "the sampler cannot read Python stacks of this interpreter; record with gpuprof run --python, "
            "which uses pyinstrument"
        ),
        "thread_states": "stack samples by pyinstrument do not show whether a thread waits",
        "collections": f"they were not recorded; {_WITH_PYTHON}",
        "compilations": "compilations were not recorded",
        "collectives": "the ranks do not have the same collective operations",
        "ranks": lambda values: format_missing_ranks(values["ranks"]),
        "settings": "settings of the program were not recorded",
        "threads": "times of threads were not recorded",
        "kernels": "GPU work was not recorded",
        "samples": "readings of the GPU were not recorded",
        "work": "work was not counted; record with --work",
        "ceilings": "ceilings of the GPU were not measured",
        "layers": "the trace does not contain layers",
        "allocations": "calls of cudaMalloc and cudaFree were not recorded",
        "masks": "the model has no mask and no padding_idx, so padding is unknown",
        "certain_waits": (
            "the kernel's times of the main thread do not confirm its waits: the machine was busy, or the "
            "program was killed"
        ),
        "samples_of_steps": "Python stacks were sampled in less than half of the time in steps",
    }
)
RERUN_PROBLEMS = Messages(
    {
        "no_replica": "the fix is in the program's own code",
        "settings": "settings of the program were not recorded",
        "shapes": "the shapes of its inputs were not recorded, as with --work",
        "device": "re-runs are for CPUs only",
        "machine": "the run is of another machine",
        "torch": "the run is of another version of PyTorch, or it is not installed",
        "memory": "its inputs need more than a quarter of the free memory",
        "refused": "PyTorch refuses its operators on new inputs",
        "several_shapes": "the operator has inputs of several shapes",
        "inconclusive": "no significant difference",
        "refuted": "on new inputs the operator is as fast as recorded",
        "deadline": "too few pairs until the deadline",
        "interrupted": "interrupted",
        "crashed": "the process of the re-run ended",
    }
)
FIGURES = Messages(
    {
        "attention_time": "time of attention",
        "operator_time": "time of the operator",
        "loader_time": "time in the loader",
        "fetches": "fetches",
        "fetches_on_processor": "part of the fetches on a processor",
        "workers_time": "sampled time of workers",
        "workers_fetch_time": "sampled time of fetches",
        "collection_time": "time in collections",
        "compilation_time": "time in compilations after the warm-up",
        "compilations": "compilations",
        "full_collections": "full collections",
        "reads_in_steps": "values read in steps",
        "span_time": "time in the span",
        "line_time": "sampled time in the line",
        "function_time": "sampled time in the function",
        "function_time_before_steps": "sampled time in the function before the first step",
        "import_time": "sampled time of the import",
        "optimizer_time": "time in the optimizer",
        "optimizer_steps": "steps of the optimizer",
        "optimizer_operators": "operators in them",
        "zeroing_time": "time in zero_grad",
        "accumulation_time": "time in which gradients are stored or added",
        "own_collective_time": "time of this rank in collective operations",
        "other_collective_time": "time of another rank",
        "collective_time": "time in collective operations",
        "collectives": "collective operations",
        "forward_passes": "forward passes",
        "slow_operator": "median of the slowest one",
        "fast_operator": "of the fastest one",
        "small_operator_time": "self time of layers and of operators below 10 us",
        "model_time": "time in the model",
        "mean_clock": "mean clock",
        "queued": "threads waited for a processor",
        "ran": "threads ran",
        "wait_time": "time of the waits",
        "waits": "waits",
        "allocation_time": "time of allocations after the warm-up",
        "releases": "calls of cudaFree",
        "forward_time": "time in forward calls",
        "norm_time": "time in these layers",
        "lookup_time": "time of lookups",
        "dense_gradient_time": "time of gradients of embeddings",
        "lock_holder_time": "time of the other thread on a processor",
        "copy_time": "time of the copies on the GPU",
        "copies": "copies",
        "kernel_time": "time of kernels",
        "kernels": "kernels",
    }
)
OUTCOMES = Messages(
    {
        "hit": "as predicted",
        "inconclusive": "inconclusive: the difference is not significant",
        "part": "as predicted in its part of the step, not in the whole step",
        "more": "more than predicted",
        "less": "less than predicted",
        "drifted": "cannot be decided, because the rest of the step changed",
        "not_repaired": "still found, the fix was not applied or has no effect",
        "reduced": "still found, with less time than before",
        "together": "gone, with others",
        "unknown": "gone, without a comparison",
    }
)
PARTS = Messages(
    {
        "optimizer": "in the optimizer",
        "loader": "in the data loader",
        "collections": "in collections",
        "model": "in the model",
        "outside": "outside of the model",
    }
)
KINDS = Messages({"replayed": "predicted by a replay", "rerun": "measured again", "bound": "upper bound"})
FACTORS = Messages(
    {
        "replayed": "replayed",
        "rerun": "measured again",
        "bound": "upper bound",
        "explained": "explained time",
        "steadiness": "steadiness of the steps",
        "steps": "few steps",
        "processors": "time with a processor",
        "incomplete": "incomplete run",
    }
)
# What a factor of the confidence is, and what makes it small.
MEANINGS_OF_FACTORS = Messages(
    {
        "replayed": "0.90, because the gain is calculated by a replay of the recorded run",
        "rerun": "1.00, because the work was executed again, without and with the fix",
        "bound": "0.60, because only the most that the fix can gain is known",
        "explained": "the part of the wall time that the replay explains; the rest has an unknown cause",
        "steadiness": (
            "1 minus half of the 90% interval of the median step, relative to that step; low if the steps "
            "take different times"
        ),
        "steps": "the number of steps divided by 5; one step may be a cold one, so its gain has no low end",
        "processors": (
            "1 minus the part of the time in which threads waited for a processor: on an idle machine, times "
            "are shorter"
        ),
        "incomplete": "0.50, because a part of the run is missing",
    }
)


def figure_text(unit: str, value: float | None) -> str:
    """Return a figure with its unit."""
    if value is None:
        return "unknown"
    if unit == "ns":
        return format_duration(value)
    if unit == "hz":
        return f"{format_quantity(value)}Hz"
    return format_share(value) if unit == "ratio" else f"{value:,.0f}"
