# SPDX-License-Identifier: Apache-2.0
"""`python -m gpuprof` is the command `gpuprof`."""

from gpuprof.cli.main import main

if __name__ == "__main__":
    main()
