# SPDX-License-Identifier: Apache-2.0
"""The files in deploy/: their metrics are those that gpuprof exports, and their own tools accept them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuprof.analyze.devices import THROTTLE_REASONS
from gpuprof.live.metrics import definitions

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
_PARTS = ("_bucket", "_sum", "_count")
_NAME = re.compile(r"\b(?:gpuprof|process)_[a-z_]+\b")


def listed() -> dict[str, str]:
    """Return the types of the listed metrics."""
    lines = (DEPLOY / "metrics.txt").read_text().splitlines()
    return {line.split()[0]: line.split()[1] for line in lines if not line.startswith("#")}


def expressions() -> list[str]:
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    board = json.loads((DEPLOY / "grafana" / "gpuprof.json").read_text())
    return rules + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_used_metric_is_listed_and_every_listed_one_is_used() -> None:
    names = {name for each in expressions() for name in _NAME.findall(each)}
    types = listed()
    base = {re.sub(f"({'|'.join(_PARTS)})$", "", name) if name not in types else name for name in names}
    assert base == set(types)
    for name in names - set(types):
        assert types[re.sub(f"({'|'.join(_PARTS)})$", "", name)] == "histogram"


def test_the_listed_metrics_are_exported() -> None:
    known = {each.name: each for each in definitions.ALL}
    for line in (DEPLOY / "metrics.txt").read_text().splitlines():
        if not line.startswith("#"):
            name, kind, *labels = line.split()
            assert (known[name].kind.value, list(known[name].labels)) == (kind, labels)


def test_legends_and_conditions_use_labels_that_exist() -> None:
    known = {each.name: {*each.labels, "instance", "le"} for each in definitions.ALL}
    board = json.loads((DEPLOY / "grafana" / "gpuprof.json").read_text())
    for target in (each for panel in board["panels"] for each in panel["targets"]):
        for name in _NAME.findall(target["expr"]):
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert used <= known[re.sub(r"_(bucket|sum|count)$", "", name)]
    reasons = {each.replace(" ", "_") for each in THROTTLE_REASONS.values()}
    named = re.findall(r'reason!~"([^"]+)"', RULES.read_text())
    assert named
    assert all(set(each.split("|")) < reasons for each in named)


def test_counters_are_only_used_as_rates() -> None:
    for expression in expressions():
        for name, kind in listed().items():
            if kind == "counter" and name in expression:
                assert re.search(rf"(rate|increase)\({name}\b", expression), expression


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_containers_have_no_privileges(path: Path) -> None:
    for pod in pods(path):
        assert pod["securityContext"]["runAsNonRoot"]
        assert not {"hostPID", "hostNetwork", "hostIPC"} & set(pod)
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            mounted = {each["name"] for each in container["volumeMounts"]}
            assert mounted <= {volume["name"] for volume in pod["volumes"]}


def pods(path: Path) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all(path.read_text())
    return [each["spec"]["template"]["spec"] for each in documents if "template" in each["spec"]]


def test_the_jobs_ask_for_one_gpu_and_the_sidecar_for_none() -> None:
    (sidecar,) = pods(DEPLOY / "kubernetes" / "sidecar.yaml")
    (job,) = pods(DEPLOY / "kubernetes" / "job.yaml")
    for pod in (sidecar, job):
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert "nvidia.com/gpu" not in sidecar["initContainers"][0]["resources"]["limits"]
    assert {"emptyDir"} < {key for volume in sidecar["volumes"] for key in volume}


def test_the_command_of_the_job_is_accepted() -> None:
    from gpuprof.cli.run import run, split_program

    (job,) = pods(DEPLOY / "kubernetes" / "job.yaml")
    command, *words = job["containers"][0]["args"]
    assert command == "run"
    own, program = split_program(words, frozenset())
    assert program is not None
    run.make_parser(run.make_context("run", ["x.py"], resilient_parsing=True)).parse_args(own)


@pytest.mark.parametrize("name", ["sidecar.yaml", "daemonset.yaml"])
def test_the_commands_that_export_metrics_are_accepted(name: str) -> None:
    from gpuprof.cli.metrics import TOKEN_VARIABLE, metrics

    (pod,) = pods(DEPLOY / "kubernetes" / name)
    containers = [*pod.get("initContainers", []), *pod["containers"]]
    (container,) = (each for each in containers if each["name"] == "metrics")
    command, *words = container["args"]
    assert command == "metrics"
    context = metrics.make_context("metrics", words)
    assert context.params["host"] == "0.0.0.0"
    assert context.params["port"] == container["ports"][0]["containerPort"]
    assert TOKEN_VARIABLE in {each["name"] for each in container["env"]}
    # The ids in the run's files are those of the namespace in which they are looked up.
    assert name == "daemonset.yaml" or pod["shareProcessNamespace"]


def test_the_command_of_the_server_is_accepted() -> None:
    from gpuprof.bench.measure.readiness import RespondingUrl, parse_readiness
    from gpuprof.cli.startup import startup

    (pod,) = pods(DEPLOY / "kubernetes" / "server.yaml")
    (container,) = pod["containers"]
    command, *words = container["args"]
    context = startup.make_context("startup", words)
    assert command == "startup"
    assert context.params["target"] == ("python", "/app/serve.py")
    readiness = parse_readiness(context.params["ready"])
    assert isinstance(readiness, RespondingUrl)
    # The probe of Kubernetes asks what gpuprof asks.
    assert readiness.path == container["startupProbe"]["httpGet"]["path"]
    assert readiness.port == container["ports"][0]["containerPort"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_panels_of_the_dashboard_have_places_and_data_sources() -> None:
    board = json.loads((DEPLOY / "grafana" / "gpuprof.json").read_text())
    places = set()
    for panel in board["panels"]:
        place = (panel["gridPos"]["x"], panel["gridPos"]["y"])
        assert place not in places
        places.add(place)
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["legendFormat"] for target in panel["targets"])
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {each["name"] for each in board["templating"]["list"]} == {"datasource", "instance"}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent: apt-get install prometheus")
@pytest.mark.parametrize(
    "words", [["check", "rules", str(RULES)], ["test", "rules", str(RULES.with_name("rules-test.yml"))]]
)
def test_promtool_accepts_the_rules(words: list[str]) -> None:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent: apt-get install prometheus")
def test_a_raised_limit_fails_the_test_of_the_rules(tmp_path: Path) -> None:
    changed = RULES.read_text().replace("> 1.2 *", "> 9 *")
    (tmp_path / "rules.yml").write_text(changed)
    shutil.copy(RULES.with_name("rules-test.yml"), tmp_path)
    words = ["promtool", "test", "rules", str(tmp_path / "rules-test.yml")]
    done = subprocess.run(words, capture_output=True, timeout=60, check=False)
    assert done.returncode == 1


@pytest.mark.needs("kubernetes_validate")
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_schema_of_kubernetes_accepts_the_manifests(path: Path) -> None:
    import kubernetes_validate

    for document in yaml.safe_load_all(path.read_text()):
        if document["apiVersion"].startswith("monitoring.coreos.com"):
            assert document["spec"]["podMetricsEndpoints"][0]["port"] == "metrics"
            continue
        kubernetes_validate.validate(document, "1.33", strict=True)
