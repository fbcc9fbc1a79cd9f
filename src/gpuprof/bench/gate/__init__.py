# SPDX-License-Identifier: Apache-2.0
"""Gates: whether a candidate regressed, against one baseline or a history."""
