# SPDX-License-Identifier: Apache-2.0
"""`gpuprof nsys`: a capture under Nsight Systems, from the program to a run."""
