# SPDX-License-Identifier: Apache-2.0
"""Counting work: a pass of its own over a model, untimed, with the FLOPs and bytes of each operator."""
