# SPDX-License-Identifier: Apache-2.0
"""Gains that are measured: the recorded work of a finding is executed again, with and without its fix.

Draft (gpuprof.analyze.findings.finding)
      |
plan -> Plan (plans)              the shapes, types and settings of the run, as an Experiment
      |
measure -> Pairs (process)        a process of its own with a deadline, which runs the worker
      |        worker             makes inputs (replicas), and executes both sides in turns (turns)
      |
Rerunner (rerunner)               the Draft with the measured gain, or a RerunProblem
"""
