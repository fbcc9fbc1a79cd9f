# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison: one document of plain data as HTML, Markdown, CSV, JSON and PDF."""

from __future__ import annotations

from gpuprof.bench.compare.document import read_document
from gpuprof.bench.report.writers import FORMATS, check_formats, write_report

__all__ = ["FORMATS", "check_formats", "read_document", "write_report"]
