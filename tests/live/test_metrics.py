# SPDX-License-Identifier: Apache-2.0
"""Metrics of snapshots: what is counted, what vanishes, and texts that another parser reads."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_snapshots import device, machine, process, snapshot

from gpuprof.live.metrics import definitions
from gpuprof.live.metrics.collector import MOST_PROCESSES, OTHER, MetricsCollector, TopNames
from gpuprof.live.metrics.definitions import REQUEST_BOUNDS_NS
from gpuprof.live.metrics.definitions import STEP_BOUNDS_NS as BOUNDS_NS
from gpuprof.live.metrics.exposition import TextFormat, chosen_format
from gpuprof.live.metrics.families import MOST_LABEL_CELLS
from gpuprof.live.requests import RequestFollower
from gpuprof.live.snapshot import (
    LiveCallFigures,
    LiveLayerFigures,
    LiveRequestFigures,
    LiveStepFigures,
    MissingReason,
    RunState,
    Unavailable,
)
from gpuprof.live.watched_feeds import LINGER_S
from gpuprof.load.published import LIVE_FILE, LoadPublisher
from gpuprof.load.requests import REQUEST, RequestStatus

MS = 1_000_000
Samples = dict[str, float]
ENDED = Unavailable(MissingReason.PROCESS_ENDED)


def samples(collector: MetricsCollector, text_format: TextFormat = TextFormat.PROMETHEUS) -> Samples:
    lines = collector.text(text_format).decode().splitlines()
    pairs = [line.partition(" # ")[0].rpartition(" ") for line in lines if not line.startswith("#")]
    assert len({name for name, _, _ in pairs}) == len(pairs)
    return {name: float(value) for name, _, value in pairs}


def of(found: Samples, name: str) -> Samples:
    return {key: value for key, value in found.items() if key.partition("{")[0] == name}


def layers(**times_ms: int) -> tuple[LiveLayerFigures, ...]:
    return tuple(LiveLayerFigures(name, 1, time * MS) for name, time in times_ms.items())


def test_steps_are_counted_in_the_bucket_whose_bound_they_reach() -> None:
    collector = MetricsCollector("1")
    steps = [BOUNDS_NS[0], BOUNDS_NS[0] + 1, 100 * MS, 90_000 * MS]
    collector.update("", snapshot(steps))
    collector.update("", snapshot([100 * MS]))
    found = samples(collector)
    bucket = "gpuprof_step_duration_seconds_bucket"
    assert len(of(found, bucket)) == len(BOUNDS_NS) + 1
    for le, count in (("0.001", 1), ("0.002", 2), ("0.064", 2), ("0.128", 4), ("65.536", 4), ("+Inf", 5)):
        assert found[f'{bucket}{{run="live",process="7",le="{le}"}}'] == count
    assert found['gpuprof_step_duration_seconds_sum{run="live",process="7"}'] == (sum(steps) + 100 * MS) / 1e9
    assert found['gpuprof_step_duration_seconds_count{run="live",process="7"}'] == 5
    assert found['gpuprof_steps_total{run="live",process="7"}'] == 5


def test_an_exemplar_leads_to_the_last_step_of_its_bucket() -> None:
    collector = MetricsCollector("1")
    collector.update("", snapshot([100 * MS, 20 * MS]))
    collector.update("", snapshot([110 * MS]))
    text = collector.text(TextFormat.OPEN_METRICS).decode()
    found = dict(re.findall(r'le="([^"]+)"} \d+ # {run="live",process="7",(step="\d+")} ', text))
    assert found == {"0.032": 'step="1"', "0.128": 'step="2"'}
    assert " # {" not in collector.text(TextFormat.PROMETHEUS).decode()


def test_a_quiet_program_is_below_the_limit_of_the_slow_step_rule_at_any_duration() -> None:
    # As histogram_quantile of Prometheus: linear within a bucket.
    def quantile(counts: list[int], wanted: float) -> float:
        rank, below = wanted * sum(counts), 0
        for index, count in enumerate(counts):
            if below + count >= rank and count:
                low = BOUNDS_NS[index - 1] if index else 0
                return low + (BOUNDS_NS[index] - low) * (rank - below) / count
            below += count
        raise AssertionError

    for share in range(1, 1000):
        counts = [0] * len(BOUNDS_NS)
        counts[5], counts[6] = share, 1000 - share
        assert quantile(counts, 0.99) < 3 * quantile(counts, 0.5)


# ---- names and cardinality


def test_layers_beyond_the_limit_count_as_other_and_no_counter_decreases() -> None:
    collector = MetricsCollector("1", top=3)
    generator = random.Random(5)
    former: Samples = {}
    whole = 0
    for at in range(60):
        # Other layers become the slowest as time passes.
        rows = layers(
            **{f"layer{n}": generator.randrange(1, 20) * (1 + (n + at // 10) % 7) for n in range(9)}
        )
        whole += sum(each.self_ns for each in rows)
        collector.update("", snapshot(at_s=at, layers=rows))
        found = of(samples(collector), "gpuprof_layer_seconds_total")
        assert all(found[key] >= value for key, value in former.items())
        assert math.isclose(sum(found.values()), whole / 1e9)
        assert len(found) <= 3 + 1
        former = found
    assert f'gpuprof_layer_seconds_total{{run="live",layer="{OTHER}"}}' in former


def test_the_names_of_the_start_do_not_take_all_places() -> None:
    names = TopNames(2)
    names.add([("block", 1_000), ("init", 1)])
    names.add([("head", 800)])
    assert [names.label_of(each) for each in ("block", "head", "init")] == ["block", "head", OTHER]


def test_names_that_fit_into_half_of_the_places_are_all_chosen_at_once() -> None:
    names = TopNames(6)
    names.add([("setup", 1_000_000), ("short", 1), ("free", 0)])
    assert [names.label_of(each) for each in ("setup", "short", "free")] == ["setup", "short", "free"]
    names.add([("fourth", 1)])
    assert names.label_of("fourth") == OTHER


def test_processes_are_limited_and_those_with_series_keep_them() -> None:
    collector = MetricsCollector("1")
    many = tuple(process(number) for number in range(100, 100 + MOST_PROCESSES))
    collector.update("", snapshot(processes=many))
    collector.update("", snapshot(processes=(process(5), *many)))
    found = samples(collector)
    assert len(of(found, "process_resident_memory_bytes")) == MOST_PROCESSES
    assert 'process_resident_memory_bytes{run="live",process="5"}' not in found
    assert found['gpuprof_processes{run="live"}'] == MOST_PROCESSES + 1


# ---- missing figures and ends


def test_an_unavailable_figure_has_no_series() -> None:
    collector = MetricsCollector("1")
    unknown = Unavailable(MissingReason.NO_READING)
    collector.update("", snapshot(devices=(device(),)))
    assert of(samples(collector), "gpuprof_device_power_watts") == {
        'gpuprof_device_power_watts{device="0"}': 350.5
    }
    collector.update("", snapshot(devices=(device(power_w=unknown, temperature_c=unknown),)))
    found = samples(collector)
    assert not of(found, "gpuprof_device_power_watts") | of(found, "gpuprof_device_temperature_celsius")
    assert of(found, "gpuprof_device_utilization_ratio")
    collector.update("", snapshot(devices=unknown, machine=machine(memory_used_bytes=unknown)))
    found = samples(collector)
    assert not [key for key in found if "device=" in key and "energy" not in key]
    assert "gpuprof_machine_memory_used_bytes" not in found
    assert "gpuprof_machine_memory_total_bytes" in found


def test_a_lost_device_reports_only_that() -> None:
    collector = MetricsCollector("1")
    collector.update("", snapshot(devices=(device(is_lost=True),)))
    found = samples(collector)
    assert found['gpuprof_device_lost{device="0"}'] == 1
    assert not of(found, "gpuprof_device_utilization_ratio")


def test_throttle_reasons_are_series_of_their_own() -> None:
    collector = MetricsCollector("1")
    collector.update("", snapshot(devices=(device(throttle_reasons=("power cap",)),)))
    found = of(samples(collector), "gpuprof_device_throttled")
    assert {key for key, value in found.items() if value} == {
        'gpuprof_device_throttled{device="0",reason="power_cap"}'
    }
    assert len(found) == 6


def test_the_gauges_of_a_process_vanish_with_it_and_its_counters_after_a_while() -> None:
    collector = MetricsCollector("1")
    collector.update("", snapshot([MS], processes=(process(7, cpu_s=3.5), process(8))))
    gone = process(7, is_alive=False, rss_bytes=ENDED, threads=ENDED, cpu_s=ENDED, spans=4)
    collector.update("", snapshot([MS], processes=(gone, process(8))))
    found = samples(collector)
    assert [key for key in found if key.startswith("process_resident")] == [
        'process_resident_memory_bytes{run="live",process="8"}'
    ]
    assert found['process_cpu_seconds_total{run="live",process="7"}'] == 3.5
    assert found['gpuprof_steps_total{run="live",process="7"}'] == 2
    assert found['gpuprof_spans_total{run="live",process="7"}'] == 14
    still = replace(gone, spans=0)
    collector.update("", snapshot(processes=(still, process(8)), interval_s=LINGER_S + 1))
    collector.update("", snapshot(processes=(still, process(8))))
    assert not [key for key in samples(collector) if 'process="7"' in key]
    assert [key for key in samples(collector) if 'process="8"' in key]


def test_a_run_that_ended_vanishes_after_a_while() -> None:
    collector = MetricsCollector("1")
    collector.update("", snapshot(layers=layers(a=5)))
    collector.update("", snapshot(state=RunState.ENDED, layers=layers(a=5), processes=()))
    found = samples(collector)
    assert found['gpuprof_layer_seconds_total{run="live",layer="a"}'] == 0.01
    assert found['gpuprof_run_recording{run="live"}'] == 0
    collector.update("", snapshot(state=RunState.ENDED, processes=(), interval_s=LINGER_S + 1))
    left = [key for key in samples(collector) if 'run="live"' in key and "_total" in key]
    assert left == []


def test_sources_with_one_device_keep_it_until_the_last_has_ended() -> None:
    collector = MetricsCollector("1")
    collector.update("a", snapshot(run="a.gpuprof", devices=(device(),)))
    collector.update("b", snapshot(run="b.gpuprof", devices=(device(),)))
    collector.forget("a")
    found = samples(collector)
    assert of(found, "gpuprof_device_power_watts")
    assert not [key for key in found if 'run="a"' in key]
    collector.forget("b")
    assert set(samples(collector)) == set(samples(MetricsCollector("1")))


ENERGY = 'gpuprof_device_energy_joules_total{device="0"}'


def read_energy(collector: MetricsCollector, source: str, energy_j: float | Unavailable) -> None:
    collector.update(source, snapshot(run=f"{source}.gpuprof", devices=(device(energy_j=energy_j),)))


def test_the_energy_of_a_device_is_counted_by_one_reader() -> None:
    # Each source counts from its own start. The device takes 10 J in each interval.
    collector = MetricsCollector("1")
    taken = []
    for interval in range(1, 9):
        if interval <= 4:
            read_energy(collector, "a", 100.0 + 10 * interval)
        if interval == 5:
            collector.forget("a")
        if interval >= 3:
            read_energy(collector, "b", 10.0 * (interval - 3))
        taken.append(samples(collector)[ENERGY])
    assert taken == [110.0, 120.0, 130.0, 140.0, 150.0, 160.0, 170.0, 180.0]


def test_a_reader_without_readings_is_replaced_and_does_not_count_twice() -> None:
    collector = MetricsCollector("1")
    read_energy(collector, "a", 50.0)
    read_energy(collector, "b", 0.0)
    for interval in range(1, 11):
        read_energy(collector, "a", Unavailable(MissingReason.NO_READING))
        read_energy(collector, "b", 10.0 * interval)
    # Five intervals are unknown: then b counts, from its reading before.
    assert samples(collector)[ENERGY] == 50.0 + 60.0
    read_energy(collector, "a", 160.0)
    assert samples(collector)[ENERGY] == 110.0
    read_energy(collector, "b", 105.0)
    assert samples(collector)[ENERGY] == 115.0


@pytest.mark.parametrize("devices", [(device(is_lost=True),), Unavailable(MissingReason.NO_READING)])
def test_a_reader_that_has_lost_the_device_is_replaced(devices: Any) -> None:
    collector = MetricsCollector("1")
    read_energy(collector, "a", 50.0)
    read_energy(collector, "b", 0.0)
    for interval in range(1, 11):
        collector.update("a", snapshot(run="a.gpuprof", devices=devices))
        read_energy(collector, "b", 10.0 * interval)
    assert samples(collector)[ENERGY] == 50.0 + 60.0


def test_energy_does_not_decrease_when_the_driver_counts_again() -> None:
    collector = MetricsCollector("1")
    for energy_j in (50.0, 5.0, 8.0):
        read_energy(collector, "a", energy_j)
    assert samples(collector)[ENERGY] == 53.0


def test_a_counter_of_the_machine_does_not_follow_its_source_down() -> None:
    # Linux lets the time of waiting for I/O decrease.
    collector = MetricsCollector("1")
    for io_wait_s in (5.0, 4.9):
        collector.update("", snapshot(machine=machine(io_wait_s=io_wait_s)))
    assert samples(collector)['gpuprof_machine_cpu_seconds_total{mode="iowait"}'] == 5.0


def test_requests_of_a_load_test_are_counted() -> None:
    rates = {"arrivals_per_s": 1.0, "ended_per_s": 1.0, "p50_ns": 2 * MS, "p90_ns": 3 * MS}
    requests = LiveRequestFigures(
        7,
        "t",
        "server",
        False,
        100,
        50,
        40,
        30,
        2,
        10,
        8,
        5,
        (),
        **rates,
        p99_ns=Unavailable(MissingReason.NOT_UPDATED),
    )
    collector = MetricsCollector("1")
    collector.update("", snapshot(requests=requests))
    found = samples(collector)
    assert found['gpuprof_requests_total{run="live",process="7",state="ended"}'] == 30
    assert found['gpuprof_request_latency_seconds_count{run="live",process="7"}'] == 0


def test_the_latency_of_a_load_test_is_a_histogram_with_all_requests_in_their_buckets(tmp_path: Path) -> None:
    generator = np.random.default_rng(3)
    latencies = np.exp(generator.normal(np.log(3e6), 2.0, 5_000)).astype(np.int64)
    rows = np.zeros(len(latencies), REQUEST)
    rows["planned_ns"] = rows["sent_ns"] = 1_000_000_000
    rows["end_ns"], rows["status"] = rows["planned_ns"] + latencies, RequestStatus.OK
    publisher = LoadPublisher(tmp_path, "t", "server", has_plan=True, clock=lambda: 10**12)
    publisher.update(rows[:1_000])
    follower = RequestFollower(tmp_path / LIVE_FILE)
    collector = MetricsCollector("1")
    collector.update("", snapshot(requests=follower.take()))
    publisher.update(rows)
    collector.update("", snapshot(requests=follower.take()))
    publisher.close()
    found = samples(collector)
    name = "gpuprof_request_latency_seconds"
    (sum_s,) = of(found, f"{name}_sum").values()
    assert sum_s == pytest.approx(latencies.sum() / 1e9)
    buckets = {
        float(re.findall('le="(.+)"', key)[0]): each for key, each in of(found, f"{name}_bucket").items()
    }
    assert len(buckets) == len(REQUEST_BOUNDS_NS) + 1
    assert buckets == {le: (latencies <= round(le * 1e9, 3)).sum() for le in buckets}


# ---- formats


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text;version=1.0.0", True),
        (
            "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            True,
        ),
        ("application/openmetrics-text;q=0.4, text/plain;q=0.5", False),
        ("application/openmetrics-text;q=x", False),
        ("application/openmetrics-text;version=9.0.0", False),
    ],
)
def test_the_format_is_the_one_that_is_preferred(accept: str, is_open: bool) -> None:
    assert (chosen_format(accept) is TextFormat.OPEN_METRICS) is is_open


HOSTILE = [
    'a"b',
    "back\\slash",
    "line\nbreak",
    "</script>",
    "\u202eright",
    "\udce9",
    "名",
    "x" * 5_000,
    "{}",
    "a,b=1",
]


def hostile() -> MetricsCollector:
    collector = MetricsCollector("1", top=50)
    rows = tuple(LiveLayerFigures(name, 3, 5 * MS) for name in HOSTILE)
    calls = tuple(LiveCallFigures("operator", name, 2, 5 * MS, 4 * MS) for name in HOSTILE)
    whole = snapshot(
        [90 * MS, 5 * MS], run='/runs/a "b".gpuprof', layers=rows, calls=calls, devices=(device(),)
    )
    collector.update("", whole)
    return collector


@pytest.mark.needs("prometheus_client")
@pytest.mark.parametrize("text_format", list(TextFormat))
def test_the_parser_of_prometheus_reads_what_was_written(text_format: TextFormat) -> None:
    from prometheus_client import parser
    from prometheus_client.openmetrics import parser as open_parser

    parse = (
        open_parser.text_string_to_metric_families
        if text_format is TextFormat.OPEN_METRICS
        else parser.text_string_to_metric_families
    )
    families = {each.name: each for each in parse(hostile().text(text_format).decode())}
    read = {each.labels["layer"]: each.value for each in families["gpuprof_layer_seconds"].samples}
    assert set(HOSTILE[:5]) | {"\\udce9", "名", "{}", "a,b=1"} <= set(read)
    assert set(read.values()) == {0.005}
    assert all(len(name) <= MOST_LABEL_CELLS + 1 for name in read)
    assert {each.labels["run"] for each in families["gpuprof_steps"].samples} == {'a "b"'}
    known = {each.family: each.kind.value for each in definitions.ALL}
    if text_format is TextFormat.OPEN_METRICS:
        assert {name: each.type for name, each in families.items()} == {
            name: known[name] for name in families
        }
        exemplars = [
            each.exemplar for each in families["gpuprof_step_duration_seconds"].samples if each.exemplar
        ]
        assert {each.labels["step"]: each.value for each in exemplars} == {"0": 0.09, "1": 0.005}
    else:
        infos = {each.name for each in definitions.ALL if each.kind.value == "info"}
        assert all(known[name] == each.type for name, each in families.items() if name not in infos)


def test_names_of_metrics_follow_the_conventions() -> None:
    for each in definitions.ALL:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", each.name)
        assert each.name.endswith("_total") == (each.kind.value == "counter")
        assert each.name.endswith("_info") == (each.kind.value == "info")
        assert each.help.endswith(".")
    assert len({each.name for each in definitions.ALL}) == len(definitions.ALL)
    named = [each.otel for each in definitions.ALL if each.otel]
    assert len(set(named)) == len(named)


def test_many_processes_that_step_keep_their_counters_and_are_limited() -> None:
    collector = MetricsCollector("1")
    numbers = range(1, MOST_PROCESSES + 7)
    steps = tuple(LiveStepFigures(number, "optimizer", (1_000_000,)) for number in numbers)
    processes = tuple(process(number) for number in numbers)
    counts = []
    for _ in range(200):
        collector.update("", snapshot(steps=steps, processes=processes))
        counts.append(of(samples(collector), "gpuprof_steps_total"))
    assert {len(each) for each in counts} == {MOST_PROCESSES}
    assert set(counts[-1].values()) == {200}
