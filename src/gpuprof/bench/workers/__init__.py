# SPDX-License-Identifier: Apache-2.0
"""Measurements in fresh processes: jobs, their protocol and the processes that run them."""
