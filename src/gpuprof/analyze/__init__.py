# SPDX-License-Identifier: Apache-2.0
"""Reading a run: call tree, attribution, statistics. Imports from record and run only."""
