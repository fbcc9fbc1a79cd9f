# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of objects in this process, as classes: validation, production profile, latency, reports."""
