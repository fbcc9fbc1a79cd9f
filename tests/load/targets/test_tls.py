# SPDX-License-Identifier: Apache-2.0
"""Encrypted servers over HTTP and gRPC, with certificates that the tests make."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from kserve_server import grpc, grpc_server
from load_server import OK, respond_with, serving
from refusals import refused, refused_command

from gpuprof.cli.main import execute
from gpuprof.errors import BenchmarkError
from gpuprof.load import open_result
from gpuprof.load.driver import DriveSettings
from gpuprof.load.requests import RequestStatus
from gpuprof.load.targets.client_process import drive_server
from gpuprof.load.targets.server_target import server_target

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: Path
    key: Path

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


def made(folder: Path, name: str) -> Pair:
    """Make a certificate that signs itself, for one name."""
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    words += ["-keyout", str(pair.key), "-out", str(pair.certificate), "-days", "2", "-subj", f"/CN={name}"]
    subprocess.run([*words, "-addext", f"subjectAltName=DNS:{name}"], check=True, capture_output=True)
    return pair


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    folder = tmp_path_factory.mktemp("certificates")
    return {name: made(folder, name) for name in ("localhost", "elsewhere")}


def credentials(pair: Pair) -> object:
    return grpc.ssl_server_credentials([(pair.key.read_bytes(), pair.certificate.read_bytes())])


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_load_on_an_encrypted_server(pairs: dict[str, Pair], tmp_path: Path, scheme: str) -> None:
    pair, plan = pairs["localhost"], np.arange(20) * 1_000_000
    if scheme == "http":
        with serving({"/": respond_with(OK)}, pair.context) as server:
            target = server_target(f"https://localhost:{server.port}/", ca_file=str(pair.certificate))
            load = drive_server(target, plan, tmp_path, DriveSettings())
    else:
        with grpc_server(credentials=credentials(pair)) as (port, servicer):
            address = f"kserve+grpcs://localhost:{port}/m"
            target = server_target(address, ca_file=str(pair.certificate), concurrency=4)
            load = drive_server(target, plan, tmp_path, DriveSettings())
        assert len(servicer.received) == 20
    assert load.driven.rows["status"].tolist() == [RequestStatus.OK] * 20


@pytest.mark.parametrize("scheme", ["https", "kserve+https", "kserve+grpcs"])
@pytest.mark.parametrize("ca", ["", "elsewhere"])
def test_a_certificate_that_is_not_trusted(
    pairs: dict[str, Pair], tmp_path: Path, scheme: str, ca: str
) -> None:
    """Neither the CAs of the system nor those of another server have signed it."""
    pair = pairs["localhost"]
    file = str(pairs[ca].certificate) if ca else ""
    with (
        serving({"/": respond_with(OK)}, pair.context) as server,
        grpc_server(credentials=credentials(pair)) as (port, servicer),
    ):
        port = port if scheme.endswith("grpcs") else server.port
        target = server_target(f"{scheme}://localhost:{port}/m", ca_file=file, timeout_s=1.0)
        with pytest.raises(BenchmarkError):
            drive_server(target, np.arange(3), tmp_path, DriveSettings())
    assert (server.requests, servicer.received) == ([], [])


@pytest.mark.parametrize("scheme", ["https", "kserve+grpcs"])
def test_a_certificate_of_another_name_is_refused(
    pairs: dict[str, Pair], tmp_path: Path, scheme: str
) -> None:
    pair = pairs["elsewhere"]
    with (
        serving({"/": respond_with(OK)}, pair.context) as server,
        grpc_server(credentials=credentials(pair)) as (port, servicer),
    ):
        port = port if scheme.endswith("grpcs") else server.port
        target = server_target(f"{scheme}://localhost:{port}/m", ca_file=str(pair.certificate), timeout_s=1.0)
        with pytest.raises(BenchmarkError):
            drive_server(target, np.arange(3), tmp_path, DriveSettings())
    assert (server.requests, servicer.received) == ([], [])


def test_the_command_takes_a_ca(pairs: dict[str, Pair], tmp_path: Path) -> None:
    pair = pairs["localhost"]
    with grpc_server(credentials=credentials(pair)) as (port, _):
        words = ["load", f"kserve+grpcs://localhost:{port}/m", "--ca", str(pair.certificate), "--rate", "50"]
        assert execute([*words, "--duration", "200ms", "--out", str(tmp_path / "out")]) == 0
    assert len(open_result(tmp_path / "out").rows) == 10


def test_a_ca_that_cannot_be_used(pairs: dict[str, Pair], tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing", encoding="utf-8")
    for file in ("empty.pem", "missing.pem"):
        with refused(BenchmarkError, "bad_ca", file):
            server_target("https://localhost:1/", ca_file=str(tmp_path / file))
    words = ["load", "http://localhost:1/", "--rate", "1", "--ca", str(pairs["localhost"].certificate)]
    refused_command(words, "ca_without_tls")
