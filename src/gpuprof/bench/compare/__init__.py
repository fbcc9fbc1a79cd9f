# SPDX-License-Identifier: Apache-2.0
"""Comparisons of model variants: plan, process runs, outputs, advice, document."""
