# SPDX-License-Identifier: Apache-2.0
"""Metrics of running programs for Prometheus and OpenTelemetry.

    collector.py -> families.py -> exposition.py -> server.py
    definitions.py               -> otlp.py

Each snapshot of the live feed is added to counters, histograms and gauges. A scrape writes the text of those,
and reads nothing.
"""
