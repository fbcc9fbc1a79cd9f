# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: what a model costs per call, with the uncertainty of the figure."""
