# SPDX-License-Identifier: Apache-2.0
"""Several variants of a model measured against each other, and what follows from it."""
