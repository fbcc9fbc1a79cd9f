# SPDX-License-Identifier: Apache-2.0
"""What is measured: models, their inputs, data sets and recipes."""
