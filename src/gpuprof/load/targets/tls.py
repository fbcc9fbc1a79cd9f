# SPDX-License-Identifier: Apache-2.0
"""TLS of connections to servers: certificates are always checked, with the CAs of the system or of a file."""

from __future__ import annotations

import ssl
from pathlib import Path

from gpuprof.errors import BenchmarkError
from gpuprof.load.targets.address import ServerAddress


def client_context(address: ServerAddress) -> ssl.SSLContext | None:
    """Return the context of connections to an address; None where it is not encrypted."""
    if not address.is_encrypted:
        return None
    return ssl.create_default_context(cafile=address.ca_file or None)


def root_certificates(address: ServerAddress) -> bytes | None:
    """Return the CAs of `--ca` as gRPC takes them; None for its own."""
    return Path(address.ca_file).read_bytes() if address.ca_file else None


def check_ca(address: ServerAddress) -> None:
    """Raise BenchmarkError where `--ca` cannot be used."""
    if not address.ca_file:
        return
    if not address.is_encrypted:
        raise BenchmarkError(
            "ca_without_tls",
            f"--ca {address.ca_file}: the connection to {address.authority} is not encrypted",
            hint="use https://, kserve+https://, kserve+grpcs:// or openai+https://",
        )
    try:
        ssl.create_default_context(cafile=address.ca_file)
    except OSError as error:  # of a file without certificates too: ssl.SSLError is one
        reason = "it has no certificate" if isinstance(error, ssl.SSLError) else error.strerror
        raise BenchmarkError(
            "bad_ca", f"--ca {address.ca_file}: cannot be used ({reason})", hint="name a file in PEM format"
        ) from error
