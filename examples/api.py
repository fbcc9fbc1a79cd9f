# SPDX-License-Identifier: Apache-2.0
"""The API in ten lines, as the README shows it: record a model, print the summary, draw the flame graph."""

import gpuprof  # isort: skip - before torch, so that PyTorch announces its operators to it
import torch

model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(256, 4, batch_first=True), 4)
with gpuprof.profile(model, out="run.gpuprof") as recording:  # noqa: SIM117
    with gpuprof.span("step"):
        model(torch.randn(8, 64, 256)).sum().backward()
print(recording.run.summary())
recording.run.flamegraph("flame.html")
