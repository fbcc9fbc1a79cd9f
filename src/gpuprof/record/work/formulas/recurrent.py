# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers: each step multiplies the input and the hidden state by the weights of all gates.

2 * steps * batch * gates * hidden * (inputs + hidden) for each layer and direction (Hochreiter and
Schmidhuber, 1997, for the gates of an LSTM: 4; Cho et al., 2014, for a GRU: 3; 1 for a plain RNN). The gates'
own arithmetic rides along. The backward pass takes two products for each one of the forward pass.
"""

from __future__ import annotations

from gpuprof.record.work.call import Count, OperatorCall
from gpuprof.record.work.registry import formula
from gpuprof.record.work.sizes import elements


def _tokens(call: OperatorCall) -> int:
    source = call["input"]
    width = int(source.shape[-1])
    return elements(source) // width if width else 0


@formula("mkldnn_rnn_layer")
def _onednn_layer(call: OperatorCall) -> Count:
    """2 * steps * batch * (weights of the input + weights of the hidden state)."""
    flops = 2 * _tokens(call) * (elements(call["weight0"]) + elements(call["weight1"]))
    # The last result is the library's scratch memory, which the definition knows nothing of.
    return Count(flops, writes=call.outputs[:3])


@formula("mkldnn_rnn_layer_backward")
def _onednn_layer_backward(call: OperatorCall) -> Count:
    """Twice the forward pass: the gradients of the data and of the weights."""
    flops = 4 * _tokens(call) * (elements(call["weight1"]) + elements(call["weight2"]))
    return Count(flops, reads=[tensor for tensor in call.inputs if tensor is not call["workspace"]])


def _weights(call: OperatorCall, name: str) -> int:
    return sum(elements(weight) for weight in call[name] if weight.dim() == 2)


@formula("_cudnn_rnn miopen_rnn")
def _library_layers(call: OperatorCall) -> Count:
    """2 * steps * batch * weights, over all layers, directions and projections."""
    return Count(2 * _tokens(call) * _weights(call, "weight"))


@formula("_cudnn_rnn_backward miopen_rnn_backward")
def _library_layers_backward(call: OperatorCall) -> Count:
    """The forward pass once for the data and once more where gradients of the weights are asked for."""
    products = 1 + bool(call["output_mask"][3])
    return Count(2 * products * _tokens(call) * _weights(call, "weight"))


@formula("_lstm_mps")
def _metal_layers(call: OperatorCall) -> Count:
    """2 * steps * batch * weights."""
    return Count(2 * _tokens(call) * _weights(call, "params"))


@formula("lstm_mps_backward")
def _metal_layers_backward(call: OperatorCall) -> Count:
    """Twice the forward pass."""
    return Count(4 * _tokens(call) * _weights(call, "params"))


@formula("quantized_lstm quantized_gru")
def _quantized_layers(call: OperatorCall) -> Count | None:
    """2 * steps * batch * gates * hidden * (inputs + hidden), by the states: weights are packed."""
    if "input" not in call.arguments:
        return None
    is_lstm = call.name.endswith("lstm")
    state = call["hx"][0] if is_lstm else call["hx"]
    hidden, directions = int(state.shape[-1]), 2 if call["bidirectional"] else 1
    width, weights = int(call["input"].shape[-1]), 0
    for _ in range(int(call["num_layers"])):
        weights += directions * (4 if is_lstm else 3) * hidden * (width + hidden)
        width = directions * hidden
    return Count(2 * _tokens(call) * weights)


# Elementwise FLOPs of one hidden unit, with a sigmoid as four and tanh as one, without and with biases.
_CELL_FLOPS = {
    # Into each of four gates one addition (three with biases); three sigmoids and a tanh; two products and a
    # sum for the cell's state; a tanh and a product for the output.
    "_thnn_fused_lstm_cell": ("cx", 22, 30),
    # Into two gates one addition (three with biases), two sigmoids; a product, an addition (three), a tanh
    # for the candidate; a difference, a product and a sum for the state.
    "_thnn_fused_gru_cell": ("hx", 16, 22),
}


@formula("_thnn_fused_lstm_cell _thnn_fused_gru_cell")
def _fused_cell(call: OperatorCall) -> Count:
    """The gates alone: 22 or 30 FLOPs a unit, in a GRU 16 or 22. The products are other operators."""
    state, plain, biased = _CELL_FLOPS[call.base_name]
    flops = plain if call.get("input_bias") is None else biased
    return Count(flops * elements(call[state]), "estimated")


@formula("_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward")
def _fused_cell_backward(call: OperatorCall) -> Count:
    """About as many as forward for each gate's derivative: 30 FLOPs a unit."""
    state = call.get("cx", call.get("grad_hy"))
    return Count(30 * elements(state), "estimated")
