# SPDX-License-Identifier: Apache-2.0
"""Whether an optimized variant still computes what its baseline computes, and where it diverges."""
