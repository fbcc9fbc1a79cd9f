# SPDX-License-Identifier: Apache-2.0
"""Fixtures that run programs against stub libraries."""

from cupti_stubs import program, stubs

__all__ = ["program", "stubs"]
