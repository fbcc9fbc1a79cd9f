# SPDX-License-Identifier: Apache-2.0
"""Statistics of measurements: quantiles, intervals, tests of ratios, change points."""
