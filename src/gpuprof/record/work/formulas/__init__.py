# SPDX-License-Identifier: Apache-2.0
"""The formulas, one file for each family of operators. Importing this registers them all."""

from gpuprof.record.work.formulas import attention, movement, pointwise, products, reductions

__all__ = ["attention", "movement", "pointwise", "products", "reductions"]
