# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run programs, also against stub libraries."""

from compared_programs import files, same_as_python
from cupti_stubs import program, stubs

__all__ = ["files", "program", "same_as_python", "stubs"]
