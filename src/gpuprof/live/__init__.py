# SPDX-License-Identifier: Apache-2.0
"""Live views of a program: the feed of figures, `gpuprof top`, `gpuprof metrics`."""
