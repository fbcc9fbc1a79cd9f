# SPDX-License-Identifier: Apache-2.0
"""What was measured: results, their files, tables and targets."""
