# SPDX-License-Identifier: Apache-2.0
"""How one configuration is measured in one process."""
