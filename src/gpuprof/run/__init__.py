# SPDX-License-Identifier: Apache-2.0
"""The run on disk: its format, how a recording becomes one, and how it is opened. Imports from record."""
