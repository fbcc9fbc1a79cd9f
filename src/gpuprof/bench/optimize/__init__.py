# SPDX-License-Identifier: Apache-2.0
"""Optimized models as files: the recipes that change a model, and distillation into a smaller one."""
