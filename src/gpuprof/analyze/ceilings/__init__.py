# SPDX-License-Identifier: Apache-2.0
"""Ceilings: the highest rates that a machine sustains, measured here, cached, and stored with runs.

cpu.py, gpu.py  -> Ceilings of Ceiling rows  -> cache.py  -> of_run.py: the table `ceilings` of a run
(ceiling.py), Drift                    -> text.py: gpuprof doctor --ceilings
"""
