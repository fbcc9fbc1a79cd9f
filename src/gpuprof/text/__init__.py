# SPDX-License-Identifier: Apache-2.0
"""Text: units, tables, escapes. Every package may import it; it imports no other package of gpuprof."""
