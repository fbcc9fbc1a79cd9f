# SPDX-License-Identifier: Apache-2.0
"""What other profilers recorded, as a run."""
