# SPDX-License-Identifier: Apache-2.0
"""The edge of the house: all text that is made of typed facts. Every room may import it, it imports none."""
