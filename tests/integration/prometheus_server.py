# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on a free port of loopback, for the tests of metrics and alerts."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from environments import REPOSITORY
from waiting import LONGEST_S, wait_until

T = TypeVar("T")
RULES = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
_CONFIGURATION = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 1s}}
rule_files: [rules.yml]
scrape_configs:
  - job_name: gpuprof
    authorization: {{type: Bearer, credentials_file: token}}
    static_configs: [{{targets: ["{target}"]}}]
"""


class Prometheus:
    """A server with its data in a folder of the test, which has the file `token`."""

    def __init__(self, folder: Path, target: str, rules: str) -> None:
        (folder / "prometheus.yml").write_text(_CONFIGURATION.format(target=target))
        (folder / "rules.yml").write_text(rules)
        self.log = (folder / "log").open("w+")
        words = [
            "--config.file=prometheus.yml",
            "--storage.tsdb.path=data",
            "--web.listen-address=127.0.0.1:0",
        ]
        self.process = subprocess.Popen(
            ["prometheus", *words, "--enable-feature=exemplar-storage"],
            cwd=folder,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        # Of port 0 its log has no number, but its listening socket has.
        self.port = self.wait_until(self._port)

    def wait_until(self, look: Callable[[], T]) -> T:
        """Return what `look` returns once it is true; until then the server may refuse requests."""
        return wait_until(look, (OSError,), pause_s=0.1)

    def _port(self) -> int | None:
        own = {
            each.resolve().name
            for each in Path(f"/proc/{self.process.pid}/fd").iterdir()
            if each.is_symlink()
        }
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                return int(fields[1].partition(":")[2], 16)
        return None

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response."""
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as response:
            return json.load(response)["data"]

    def values(self, query: str, label: str = "") -> dict[str, float]:
        """Return the values of a query by a label."""
        found = self.get("query", query=query)["result"]
        return {each["metric"].get(label, ""): float(each["value"][1]) for each in found}

    def rules(self) -> list[dict[str, Any]]:
        """Return the state of all rules."""
        return [each for group in self.get("rules")["groups"] for each in group["rules"]]

    def close(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait(timeout=LONGEST_S)
        self.log.close()
