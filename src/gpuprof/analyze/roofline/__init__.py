# SPDX-License-Identifier: Apache-2.0
"""The roofline: counted work held against measured ceilings, operator by operator (docs/roofline.md)."""
