# SPDX-License-Identifier: Apache-2.0
"""`gpuprof dashboard`: a folder of runs and results as a page.

`catalog` finds what is in the folder, `worker` reads and renders it in another process, `live_runs` follows
runs that are being recorded, `server` serves the page to browsers. Nothing in the folder is changed.
"""
