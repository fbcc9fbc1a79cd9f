# SPDX-License-Identifier: Apache-2.0
"""Load: what happens to requests that arrive by a plan, whether the system is ready for them or not.

    schedules -> driver -> targets (in process, HTTP, gRPC) -> requests -> result

Latency is counted from the planned arrival, so that a system that stalls cannot hide the requests that
waited meanwhile.
"""
