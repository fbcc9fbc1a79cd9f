# SPDX-License-Identifier: Apache-2.0
"""What load is put on: callables and models in process, servers."""
