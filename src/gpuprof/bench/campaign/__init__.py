# SPDX-License-Identifier: Apache-2.0
"""Several variants of one model, measured and held against each other."""
