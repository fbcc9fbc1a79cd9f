# SPDX-License-Identifier: Apache-2.0
"""The command line: one small file a verb, nothing here that the library cannot do by itself."""
