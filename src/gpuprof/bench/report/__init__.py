# SPDX-License-Identifier: Apache-2.0
"""Reports of comparisons and of benchmarks as HTML, Markdown, CSV, JSON and PDF."""

from __future__ import annotations

from gpuprof.bench.compare.document import read_document
from gpuprof.bench.report.writers import FORMATS, check_formats, write_report

__all__ = ["FORMATS", "check_formats", "read_document", "write_report"]
