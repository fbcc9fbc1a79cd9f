# SPDX-License-Identifier: Apache-2.0
"""Recording: spans, layers and operators of this process, into a run's folder. Imports no other package."""
