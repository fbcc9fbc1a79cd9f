# SPDX-License-Identifier: Apache-2.0
"""Alerts: typed rules over the snapshots of the live feed, and over a folder of results.

    rules_file.py -> rules.py -> conditions.py -> engine.py -> text.py, webhook.py
                                 figures.py

A view calls `AlertEngine(rules).update(snapshot)` with each snapshot, in order. It returns the alerts that
fired, cleared or became worse with it; `AlertEngine.active` are those that fire. Time is the sum of the
intervals, so a clock that is set back changes nothing.
"""
