# SPDX-License-Identifier: Apache-2.0
"""Views of analyzed runs: each takes plain data and returns text; nothing here measures."""
