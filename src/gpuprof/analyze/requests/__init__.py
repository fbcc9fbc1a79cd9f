# SPDX-License-Identifier: Apache-2.0
"""Where the time of requests went, of a run that `gpuprof load --profile` recorded.

rows (table requests) -> times (self time by node of each) -> slowest, sides of the tail's flame graph
"""
