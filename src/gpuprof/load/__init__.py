# SPDX-License-Identifier: Apache-2.0
"""Load: requests by a schedule, what they cost, and how many machines a load needs."""
