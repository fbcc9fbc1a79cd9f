# SPDX-License-Identifier: Apache-2.0
"""Causes of lost time in a run, with fixes and predicted gains, and what became of the predictions.

ProgramRecord (record)   steps, spans, stacks and the replay of one process
      |
rules: loader (loading), logging, waiting (between_layers), optimizer and gradients (optimizer), collections,
      |  compilations, imports, start-up, threads (interpreter), ranks, operators, kernels, GPUs (device),
      |  lookups, normalization, padding (moved_bytes); each returns Draft (finding), or Missing
      |
find -> Findings (engine)   significant gains in order, a cause with its symptoms and where it is (places)
      |
score -> Score (promises)   the gains that an old run predicted, and what a new run got
explanation, score_text (text), with the texts of codes (messages)
"""
