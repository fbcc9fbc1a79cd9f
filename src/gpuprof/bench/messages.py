# SPDX-License-Identifier: Apache-2.0
"""The text of every fact of benchmarks, by its code; templates are as gpuprof.text.messages has them.

Besides its formats these know `speedup` and `points` with their intervals, `sizes` of batches, `layer`,
`origin`, `shapes` and `not_finite` of outputs, `status` of a source of a run, and `fact` and `facts`, which
are facts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpuprof.bench.number_text import (
    interval_text,
    not_finite_text,
    points_text,
    sizes_text,
    speedup_text,
)
from gpuprof.record.facts import SourceStatus
from gpuprof.run.messages import reason_text
from gpuprof.text.messages import Messages, Template, Values
from gpuprof.text.units import counted

if TYPE_CHECKING:
    from gpuprof.bench.measure.measurement import Measurement


def fact_text(code: str, values: Values) -> str:
    """Return a fact as one sentence without a full stop."""
    if "text" in values:
        return str(values["text"])
    text = MESSAGES.text(code, values)
    if "affected_runs" in values and values["process_runs"] > 1:
        runs = f"in {values['affected_runs']} of {values['process_runs']} process runs"
        return f"{runs}; in the first of them, {text}"
    return text


_TITLES = {
    "relative_iqr": "relative IQR",
    "background_cpu_load": "background CPU load",
    "cpu_frequency": "CPU frequency",
    "warmup": "warm-up",
}


def title(code: str) -> str:
    """Return a code as words."""
    return _TITLES.get(code, code.replace("_", " "))


def _fact(fact: Any) -> str:
    """Return the text of a fact, which is plain data among the values of another."""
    return fact_text(fact["code"], fact["values"]) if isinstance(fact, Mapping) else str(fact)


def _interrupted(values: Values) -> str:
    if "planned" not in values:  # of a file of an earlier version
        return "interrupted before it was complete"
    planned = counted(values["planned"], values.get("unit", "process run"))
    text = f"interrupted: the figures are of {values['runs']} of {planned}"
    left_out = values["left_out"]
    if not left_out:
        return text
    more = "1 more is" if left_out == 1 else f"{left_out} more are"
    return f"{text}; {more} kept, and not compared before the others of the same round are made"


def _not_paired(values: Values) -> str:
    pairs, unit = values["pairs"], values.get("unit", "process run")
    made = (
        f"{values['baseline']} has {counted(values['of_baseline'], unit)}, "
        f"{values['variant']} has {values['runs']}"
    )
    if not pairs:
        return f"{made}, none in the same round: the two are not compared"
    are = "1 pair of the same round is" if pairs == 1 else f"{pairs} pairs of the same round are"
    return f"{made}: {are} compared, their other {unit}s are not"


def _failed(values: Values) -> str:
    """Return a failure with its hint, which files of earlier versions have in the message."""
    hint, runs = values.get("hint"), values.get("failed_runs", 1)
    message = str(values["message"])
    if runs > 1:
        message = f"{counted(runs, 'process run')} failed, first: {message}"
    return f"{message}; hint: {hint}" if hint else message


def _warmup(values: Values) -> str:
    text = f"{values['calls']:,} calls in {values['elapsed_s']:.2f} s did not reach a steady state"
    drift = values["drift"]
    return text if drift is None else f"{text}; the last windows differ by {drift:.1%}"


def _relative_speed(values: Values) -> str:
    text = f"{speedup_text(values['speedup'])} as fast as {values['baseline']}"
    if not values["left_out"]:
        return text
    sizes, left_out = sizes_text(values["sizes"]), sizes_text(values["left_out"])
    return f"{text} at batch size {sizes} (not measured at {left_out})"


def _by_batch_size(values: Values) -> str:
    parts = (f"{name} at {sizes_text(sizes)}" for name, sizes in values["sizes"].items())
    return f"The best variant depends on the batch size: {', '.join(parts)}"


def _not_finite(values: Values) -> str:
    kinds = [f"{values[key]:,} {text}" for key, text in _NOT_FINITE.items() if values[key]]
    return f"its outputs contain {' and '.join(kinds)}"


_NOT_FINITE = {"nan": "NaN", "infinity": "infinities"}


def _layer(layer: Values) -> str:
    call = f", call {layer['ordinal'] + 1}" if layer["ordinal"] else ""
    name = f"{layer['path']} ({layer['type']}{call})"
    if layer["local_error"] is None:
        return name if layer["reason"] is None else f"{name}: {_fact(layer['reason'])}"
    allowed = "" if layer["allowed"] is None else f" of {layer['allowed']:.2g} allowed"
    return f"{name}: local error {layer['local_error']:.2g}{allowed}"


def _origin(origin: Values) -> str:
    held = f"; not finite in its {', '.join(origin['parameters'])}" if origin["parameters"] else ""
    where = f"in its {origin['output']}{held}"
    return f"{origin['path']} ({origin['type']}) makes {not_finite_text(origin['found'])} {where}"


def _shapes(shapes: Values) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items()) or "nothing"


def _best_throughput(values: Values) -> str:
    rate, target = values["throughput_per_s"], values["target"]
    text = f"{rate:,.{0 if rate >= 100 else 2}f} samples/s is the best of the sizes measured"
    return text if target is None else f"{text} and meets {target}"


def _target_not_met(values: Values) -> str:
    others = (
        f"; {name} meets it at batch size {sizes_text(found)}" for name, found in values["others"].items()
    )
    return f"no batch size of {values['variant']} is shown to meet it{''.join(others)}"


_SETTINGS = {
    "threads": "numbers of threads",
    "tf32": "settings of TF32",
    "input_shape": "input shapes",
    "device": "devices",
    "data": "data",
    "seed": "seeds",
}


def _different_settings(values: Values) -> str:
    return f"the variants ran with different {_SETTINGS[values['setting']]}: {', '.join(values['different'])}"


def _too_few_requests(values: Values) -> str:
    needs = ", ".join(f"{name} {count:,}" for name, count in values["needed"].items())
    names = ", ".join(values["needed"])
    return f"too few samples for {names}: 2 process runs need this many requests of each variant: {needs}"


def _traffic_slower(values: Values) -> str:
    return f"{values['variant']} is slower: {_figure_ratio(values)} is above {1 + values['margin']:.3f}x"


def _traffic_inconclusive(values: Values) -> str:
    return f"{_figure_ratio(values)} reaches above {1 + values['margin']:.3f}x"


def _figure_ratio(values: Values) -> str:
    ratio = values["ratio"]
    interval = interval_text(ratio["low"], ratio["high"], "no interval")
    return f"{values['figure']} {ratio['value']:.3f}x ({interval})"


def _traffic_same(values: Values) -> str:
    figures = ", ".join(_figure_ratio(each) for each in values["figures"])
    text = f"{values['variant']} is not slower by more than the margins ({figures})"
    return f"{text}, and does not fail more often"


def _swapped_classes(values: Values) -> str:
    first, second = values["first"], values["second"]
    scores = {True: "; their scores are exchanged", False: "; their scores are not exchanged", None: ""}
    return (
        f"classes {first} and {second} are swapped: {values['first_moved']:,} of {values['first_count']:,} "
        f"predictions of {first} became {second}, {values['second_moved']:,} of {values['second_count']:,} "
        f"the other way{scores[values['by_scores']]}"
    )


def _degraded_class(values: Values) -> str:
    text = f"class {values['name']}: accuracy from {values['baseline']:.1%} to {values['accuracy']:.1%}"
    text += f" of {values['samples']:,} samples (p={values['p_value']:.2g})"
    return text if values["becomes"] is None else f"{text}, mostly predicted as {values['becomes']}"


def _threshold_option(values: Values) -> str:
    return "--margin " if values["metric"] == "p50" else f"--threshold {values['metric']}="


def _gate_no_figure(values: Values) -> str:
    lacking = [side for side in ("baseline", "candidate") if not values[f"has_{side}"]]
    return f"no figure in the {' and the '.join(lacking)}"


def _unreliable_quantiles(values: Values) -> str:
    needs = ", ".join(f"{name} needs {count:,}" for name, count in values["needed"].items())
    return f"{values['samples']:,} samples give no 95% interval: {needs}; omit --iterations"


def _replicas_not_counted(values: Values) -> str:
    codes = values["exit_codes"]
    ends = ", ".join(f"signal {-code}" if code < 0 else f"exit code {code}" for code in codes)
    parts = [f"{counted(len(codes), 'other replica')} ended ({ends})"] if ends else []
    if values["idle"]:
        parts.append(f"{counted(values['idle'], 'other replica')} completed no call")
    return f"{' and '.join(parts)}: the throughput of all is unknown"


TEMPLATES: dict[str, Template] = {
    # --- warnings of one measurement ---
    "relative_iqr": (
        "the middle half of the samples spans {relative_iqr:percent} ({low_s:time} to {high_s:time})"
    ),
    "drift": "from the first to the last sample the time changed by {drift:+.1%} ({low:+.1%} to {high:+.1%})",
    "large_drift": (
        "the first tenth of the samples has a median of {first_s:time}, the last tenth {last_s:time}"
    ),
    "bimodal": "the samples gather at {first_s:time} and at {second_s:time}: no single figure describes both",
    "involuntary_context_switches": (
        "the process had {switches:,} involuntary context switches in {calls:,} calls"
    ),
    "background_cpu_load": "other processes kept {busy_cpus:.1f} of {cpus} CPUs busy",
    "steal_time": "the hypervisor gave {steal:percent} of the CPU time to other machines",
    "cpu_frequency": "the CPU frequency went from {before_mhz:,.0f} to {after_mhz:,.0f} MHz",
    "warmup": _warmup,
    "timer": "reading the clock takes {timer_s:time}, {fraction:.0%} of a sample: use mode='throughput'",
    "enqueue": "a call had returned after {fraction:.0%} of its time: the host sets the pace",
    "recording": "a recording was running: its cost is part of the figures",
    "changed_inputs": "the calls change their inputs: each call computes something else than the one before",
    "failed_process_runs": "{failed} of {process_runs:#process run} failed, first: {first}",
    "unreliable_quantiles": _unreliable_quantiles,
    "replicas_not_counted": _replicas_not_counted,
    "one_process_run": "one process run does not show the variation between runs: use --launches 10",
    # --- why there is no figure ---
    "failed": _failed,
    "not_measured": "the comparison was aborted before all of it was measured",
    "no_run": "{reason}",
    "variant_failed": "it could not be measured",
    "accuracy_not_requested": "comparing outputs was not requested",
    "comparison_aborted": "the comparison was aborted before",
    "no_dataset": "no data set was given",
    "no_outputs": "{reason}",
    "no_baseline_outputs": "the baseline {baseline} gave no outputs: {reason}",
    # --- notes of a comparison ---
    "interrupted": _interrupted,
    "restored_runs": "{restored} of {runs} process runs are from an earlier time",
    "not_paired": _not_paired,
    "not_interleaved": (
        "{baseline} and {variant} were not measured interleaved: {restored_of_baseline} and {restored} of "
        "their process runs are from an earlier time, and a machine that has changed since looks like a "
        "difference: "
        "--fresh measures all of them interleaved"
    ),
    "different_settings": _different_settings,
    "runs_differ": (
        "{variant}, batch size {batch_size}: the speed-up is {pooled:.3g}x from all samples pooled, and "
        "{by_run:.3g}x from the process runs: the runs vary strongly"
    ),
    "no_traffic": "no requests were shared: {reason}",
    "no_layers_compared": "{variant}: not compared layer by layer: {reason}",
    "no_layers_in_script": (
        "{variant}: no layers in its recorded run: a program of TorchScript reports no calls of its layers; "
        "its operators are recorded"
    ),
    "no_reference": "tolerance is not judged: the {reference} failed: {reason}",
    # --- outputs ---
    "not_finite": lambda values: (
        f"{values['output']}: {not_finite_text(values['found'])} in the optimized variant; the baseline has "
        f"{format(values['baseline_count'], ',') if values['baseline_count'] else 'none'}"
    ),
    "baseline_not_finite": "{output}: {found:not_finite} in the baseline; the optimized variant has none",
    "output_beyond_tolerance": "{output}: outside the tolerance: {reason:fact}",
    "new_not_finite": "{count:,} values are NaN or infinite, and finite in the reference",
    "error_of_type": "error {error:.2g}, {dtype} rounding allows {allowed:.2g}",
    "reference_without_floats": "the reference returns no floating-point numbers",
    "reference_is_zero": "the reference is 0 or not finite throughout: there is nothing to compare with",
    "reference_too_coarse": "the reference ({reference}) is no more precise than the baseline ({baseline})",
    "dtype_unknown": "the type that the {side} variant computes in is not known: name it with {side}_dtype=",
    "no_plain_values": "not compared, since it has no plain values: {output}",
    "labels_not_used": "labels are not used: no output is scores of classes, (samples, classes)",
    "no_labels_in_batches": "the data has no labels: outputs are compared by agreement, without accuracy",
    "output_not_stored": "{variant}: not stored, since it has no values for each sample: {output}",
    "pruned_not_judged": "{variant}: tolerance is not judged: pruning is no rounding, it changes the model",
    "outputs_by_order": lambda values: (
        f"{values['variant']}: outputs are compared by their order: "
        f"{', '.join(f'{new} as {old}' for new, old in values['names'].items())}"
    ),
    "swapped_classes": _swapped_classes,
    "degraded_class": _degraded_class,
    "more_degraded_classes": "{count} more classes have a lower accuracy",
    "lower_accuracy": "accuracy is {verdict}: {value:+.2%} ({low:+.2%} to {high:+.2%}, p={p_value:.2g})",
    "metric_raised": "metric {metric} of {variant}: it raised {error} at {place}",
    "metric_not_finite": "metric {metric} of {variant}: it is {value}",
    # --- layers ---
    "first_nan": "{side}: the first NaN: {origin:origin}",
    "first_infinity": "{side}: the first infinity: {origin:origin}",
    "first_divergence": "the first layer that diverges is {layer:layer}",
    "more_divergences": "{count:,} more diverge, the worst is {worst:layer}",
    "layer_failed": "failed on the baseline's inputs: {reason}",
    "layer_without_values": "returns nothing that has plain values",
    "other_shapes": "returns other shapes: {baseline:shapes}, and {optimized:shapes} in the optimized model",
    "not_comparable": "NaN or infinity on one side, or a baseline of zeros",
    "layer_dtype_unknown": "the type that it computes in is not known: name it with optimized_dtype=",
    "beyond_allowed": "{times:.3g} times what is allowed",
    "compensated": "{reason:fact}, but {layer} around it does not diverge",
    "compiled_code_left_out": (
        "compiled modules were run without their compiled code: hooks see no layers in it"
    ),
    "no_reference_copy": "no reference: {reason}",
    "no_layers_seen": "no layer below the model was called in a way that hooks see",
    # --- quality ---
    "baseline_not_finite_too": lambda values: (
        f"{_not_finite(values)}, at the same places as those of the baseline, which is no reference there"
    ),
    "is_baseline": "it is what the others are compared with",
    "outputs_not_compared_as_requested": "its outputs were not compared, as requested",
    "outputs_not_compared": "its outputs were not compared: {reason:fact}",
    "outputs_not_finite": _not_finite,
    "accuracy_lower": lambda values: (
        f"its accuracy is lower by {points_text(values['change'], is_loss=True)}"
    ),
    "accuracy_kept": lambda values: (
        f"its accuracy is {'the same' if values['verdict'] == 'same' else values['verdict']}: "
        f"{points_text(values['change'])}"
    ),
    "accuracy_inconclusive": "{samples:,} samples are too few to judge its accuracy: {change:points}",
    "within_tolerance": "its outputs differ within the rounding of their dtype",
    "beyond_tolerance": "its outputs differ by more than the rounding of their dtype, and labels are missing",
    "no_labels": "there are no labels to judge its differences",
    # --- the headline ---
    "nothing_measured": "No variant was measured",
    "none_compared": "no other variant is compared with {baseline} yet",
    "no_baseline": lambda values: (
        f"Nothing can be compared: {values['variant']}, the baseline, "
        f"{'was not measured' if values['is_missing'] else 'failed'}"
    ),
    "one_variant": "Only {variant} was measured: there is no second variant to compare it with",
    "take_variant": "Take {variant}: {speed:fact}, and {reason:fact}",
    "quality_unknown": (
        "{variant} is {speed:fact}; whether its outputs are good enough is unknown: {reason:fact}"
    ),
    "keep_baseline": "Keep {variant}: {reason:fact}",
    "faster_but_unfit": "{variant} is faster, but {reason:fact}",
    "inconclusive_and_unfit": "whether {variant} is faster is inconclusive, but {reason:fact}",
    "baseline_not_recommended": "No variant is recommended: of {variant}, the baseline, {reason:fact}",
    "all_others_failed": "no other variant could be measured",
    "none_faster": "no other variant is faster",
    "by_batch_size": _by_batch_size,
    "inconclusive": "Inconclusive: {variant} is {speed:fact}, {reason:fact}",
    "mixed_speed": "faster at some batch sizes and slower at others",
    "no_interval": "but there is no interval: too few process runs, or too much noise",
    "interval_crosses_margin": "and the interval crosses the equivalence margin",
    "relative_speed": _relative_speed,
    "machine_was_busy": "{headline:fact}. The machine was busy during the measurement",
    "headline_interrupted": "{headline:fact}. The comparison was {interrupted:fact}",
    # --- what to do next ---
    "take": "take {variant}",
    "speed_and_quality": "{speed:fact}; {quality:fact}",
    "consider_too": "consider {variant} too",
    "speeds_overlap": (
        "its speed-up of {speedup:speedup} cannot be distinguished from {best_speedup:speedup} of {best}"
    ),
    "do_not_take": lambda values: (
        f"do not take {values['variant']}, though it {'is' if values['is_certain'] else 'may be'} even faster"
    ),
    "judge_by_metric": (
        "judge the outputs of {variant} with a metric of your own (--metric): labels are given, and no "
        "output is scores of classes"
    ),
    "fix_outputs": "repair what prevents a comparison of the outputs of {variant}",
    "compare_labelled": "compare {variant} on labeled data before it is used (--dataset)",
    "take_at_batch_sizes": "take {variant} at batch size {sizes:sizes}",
    "none_faster_there": "nothing is faster there",
    "fastest_there": "it is the fastest there",
    "name_second_variant": "name a second variant",
    "needs_two_variants": "a comparison needs two",
    "continue_measuring": "run the same command again, which measures {variant}",
    "fix_or_other_baseline": "fix {variant}, or name another baseline",
    "fix_or_leave_out": "fix {variant}, or leave it out",
    "fix_variant": "fix {variant}",
    "leave_out": "leave {variant} out",
    "is_slower": "it is {speedup:speedup} as fast as the baseline",
    "quieter_machine": lambda values: (
        "measure again on a quieter machine"
        f"{', or with fewer threads (OMP_NUM_THREADS=1)' if values['has_threads'] else ''}"
    ),
    "disturbed_runs": "{disturbed} of {runs} measurements were disturbed, for example: {first:fact}",
    "judge_metric": "judge whether {metric} of {value:.4g} is acceptable for {variant}",
    "metric_of_baseline": "the baseline has {baseline:.4g}, and {better} is better",
    "check_classes": "check the classes that {variant} predicts worse",
    "degraded_classes": "{classes:list}: their accuracy is lower, though the accuracy over all is not",
    "do_not_promise": "do not promise {target}",
    "target_not_met": _target_not_met,
    "best_batch_size": "run {variant} at batch size {batch_size} where throughput counts",
    "best_throughput": _best_throughput,
    "calibrate_with_others": "calibrate {variant} with other samples than it is judged by",
    "calibrated_on_dataset": "its scales come from {calibration}: other samples may have worse predictions",
    "calibrate_with_real": "calibrate {variant} with samples like those in use (RECIPE:64:FOLDER)",
    "calibrated_on_synthetic": "its scales come from {calibration}",
    "measure_on_quieter_machine": "measure {variant} again on a quieter machine",
    "too_many_runs_needed": (
        "more than {most:,} process runs would be needed for a verdict: {speedup:speedup}"
    ),
    "more_runs": "measure {variant} in {runs:#process run} each (--launches {runs})",
    "inconclusive_after_runs": "after {runs:#process run} its speed-up is inconclusive: {speedup:speedup}",
    "more_labelled_samples": "compare the outputs on more labeled samples",
    "wide_accuracy_interval": "the interval of an accuracy is too wide",
    # --- the conclusion ---
    "concluded_measured": lambda values: (
        f"{values['measured']} of {counted(values['variants'], 'variant')} measured completely"
        + ("" if values["runs"] is None else f", in {counted(values['runs'], 'process run')}")
    ),
    "concluded_faster": "faster than the baseline: {variants:list}",
    "concluded_slower": "slower than the baseline: {variants:list}",
    "concluded_same": "as fast as the baseline, within {margin:percent}: {variants:list}",
    "concluded_open": "inconclusive in speed: {variants:list}",
    "concluded_worse_outputs": "worse outputs than the baseline: {variants:list}",
    "concluded_no_worse_outputs": "no variant has worse outputs, on {samples:,} samples",
    "concluded_outputs_unknown": "outputs that were not compared: {variants:list}",
    "concluded_disturbed": (
        "{disturbed:,} of {runs:,} measurements were disturbed by the machine, which widens the intervals"
    ),
    "concluded_undisturbed": "none of {runs:,} measurements was disturbed by the machine",
    "concluded_steps": "{steps:#next step} in the summary",
    # --- shared traffic ---
    "do_not_roll_out": "do not roll out {variant}, whose requests are as fast",
    "reasons": "{reasons:facts}",
    "roll_back": "roll back: serve with {first} alone",
    "roll_out": "roll out to 100%: serve with {second} alone",
    "keep_split": "keep {second} at {share:.0%} and measure {more_runs:#more process run}",
    "keep_split_inconclusive": (
        "keep {second} at {share:.0%}: more process runs hardly help, use wider margins or a quieter machine"
    ),
    "fails_more_often": (
        "{second} fails more often: {failed:,} of {requests:,} requests, {first} {first_failed:,} of "
        "{first_requests:,} (difference {low:.2%} to {high:.2%})"
    ),
    "traffic_slower": _traffic_slower,
    "traffic_inconclusive": _traffic_inconclusive,
    "traffic_same": _traffic_same,
    "needs_medians": "the medians of at least two process runs are needed",
    "may_fail_more_often": "that {second} fails more often by {margin:percent} is not ruled out",
    "failed_traffic_runs": "failed process runs: {failed}, first: {first}",
    "traffic_interrupted": "interrupted: these are the process runs until then",
    "too_few_requests": _too_few_requests,
    # --- energy ---
    "energy_not_read": "{status:status}",
    "energy_of_several_devices": "{devices} devices are here, and which one works is not known",
    "energy_not_reported": "the device reported no energy over {window_s:g} s or more",
    "energy_without_counter": "no device with a counter that gpuprof reads",
    "idle_power_not_reported": "the device reported no idle power",
    "energy_differs_from_power": (
        "the counter shows {counter_j:.3g} J and the integral of power {integral_j:.3g} J"
    ),
    # --- gates ---
    "gate_worse": "the whole interval is beyond the threshold of {margin:percent}",
    "gate_better": "the whole interval is better than the threshold of {margin:percent}",
    "gate_no_figure": _gate_no_figure,
    "gate_busy_machine": (
        "inconclusive, since half of the process runs of a side or more had background load: measure again "
        "on a quieter machine, or judge it with --any-load"
    ),
    "gate_background_load": (
        "{path}: {busy} of {measured} measurements had background load of other processes or machines"
    ),
    "tail_not_judged": "{metric} is not judged in {configurations:#configuration}: {reason:fact}",
    "too_few_for_tail": "a process run has {samples:#sample}, and needs {needed:,}",
    "quantiles_of_windows": "the samples of throughput mode are means of several calls",
    "gate_needs_labels": (
        "the interval crosses the threshold of {margin:percent}: more labeled samples make it narrower"
    ),
    "gate_needs_requests": (
        "the interval crosses the threshold of {margin:percent}: longer runs, or more of them, make it "
        "narrower"
    ),
    "gate_one_load": "one run does not show how runs differ: make 5 of each",
    "load_correlated": (
        "waiting requests delay those after them for longer than a twentieth of the run: run longer, or make "
        "5 runs"
    ),
    "load_few_requests": (
        "too few requests (n={requests:,}, needs at least {needed:,}): run longer, or use a higher rate"
    ),
    "load_too_few": (
        "the requests of the run are correlated, and count as {effective:,} independent ones; this quantile "
        "needs {needed:,}: run longer, or make 5 runs"
    ),
    "load_failures_decide": "failed requests, which are the latest, decide this quantile",
    "goodput_not_judged": "goodput is not judged, since the targets differ: {goals:list;}",
    "gate_one_run": "one process run does not show how runs differ: make 10 of each",
    "gate_crosses": (
        "the interval crosses the threshold of {margin:percent}: more process runs make it narrower"
    ),
    "gate_one_file": "one file does not show how files differ: a history needs several",
    "gate_crosses_of_files": (
        "the interval crosses the threshold of {margin:percent} (files vary by "
        "{variation:percent}, the level has {files}): {fix:fact}"
    ),
    "gate_needs_files": (
        "about {files:#file} of the candidate are needed, measured separately; give --candidate for each"
    ),
    "gate_near_margin": (
        "the ratio is near the threshold; measure the candidate once more, or use a wider threshold"
    ),
    "gate_needs_margin": lambda values: (
        "no practical number of candidates is enough; one is with "
        f"{_threshold_option(values)}{values['percent']}%"
    ),
    "different_machines": "measured on different machines: {different:list;}",
    "different_versions": "different versions: {different:list;}",
    "aborted_runs": (
        "{path}: {aborted} of {process_runs_made} process runs of {configuration} were aborted and are not "
        "counted"
    ),
    "only_candidate": "only the candidate measured {configurations:list;}: not judged",
    "few_files": (
        "{few} of {configurations} configurations have fewer than {fewest} files, which cannot show a change "
        "of level: all of them are the baseline"
    ),
    "empty_files": "{files:#empty file} left out: of benchmarks that have not ended",
    "copied_files": "{files:#file} left out: copies of other files",
    "newer_files": "{files:#file} left out: newer than the candidate",
    "other_machine_files": "{files} than the candidate ({different})",
}
MESSAGES = Messages(
    TEMPLATES,
    {
        "speedup": speedup_text,
        "points": points_text,
        "sizes": sizes_text,
        "not_finite": not_finite_text,
        "origin": _origin,
        "layer": _layer,
        "shapes": _shapes,
        "fact": _fact,
        "status": lambda status: reason_text(SourceStatus.from_plain(status)),
        "facts": lambda facts: "; ".join(map(_fact, facts)),
    },
)


def stop_text(measurement: Measurement) -> str:
    """Return what ended a measurement."""
    if measurement.failure is not None:
        return str(measurement.failure)
    return STOPS.text(measurement.stopped_by, measurement.stop_values)


def _time_limit(values: Values) -> str:
    begin = f"{values['limit_s']:g} s were over"
    if "iterations" in values:
        return f"{begin} before {values['iterations']:,} iterations"
    width = values["width"]
    wide = "based on too few samples" if width is None else f"{width:.2%} wide"
    return f"{begin}: the interval of p{quantile_text(values['quantile'])} is {wide}"


def quantile_text(quantile: float) -> str:
    """Return a quantile as the number after its p: 0.999 is 99.9."""
    return f"{quantile * 100:.6g}"


STOPS = Messages(
    {
        "iterations": "{iterations:,} iterations were asked for",
        "precision": "the interval of p{quantile:quantile} is {width:.2%} wide",
        "time limit": _time_limit,
        "end of data": "the data ended after {batches:#batch/batches}",
        "most samples": "{samples:,} samples are the most that are kept",
        "interrupted": "interrupted after {samples:#sample}",
    },
    {"quantile": quantile_text},
)
