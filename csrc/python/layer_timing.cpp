// SPDX-License-Identifier: Apache-2.0
#include "python/layer_timing.hpp"

#include <optional>

namespace gpuprof::python {
namespace {

PyObject* device_function = nullptr;
PyObject* stream_function = nullptr;

struct Stream {
    cuda::StreamHandle handle;
    std::uint32_t device;
};

// An error of PyTorch must not reach the measured program.
std::optional<Stream> current_stream() noexcept {
    const ErrorKeeper kept;
    Py_XINCREF(device_function);
    Py_XINCREF(stream_function);
    const Owned get_device(device_function), get_stream(stream_function);
    if (!get_device || !get_stream) return std::nullopt;
    const Owned device(PyObject_CallNoArgs(get_device.get()));
    const Owned address(device ? PyObject_CallFunctionObjArgs(get_stream.get(), device.get(), nullptr)
                               : nullptr);
    Stream stream{};
    if (address) stream.handle = PyLong_AsVoidPtr(address.get());
    if (address) stream.device = static_cast<std::uint32_t>(PyLong_AsUnsignedLong(device.get()));
    if (PyErr_Occurred() == nullptr) return stream;
    PyErr_Clear();
    return std::nullopt;
}

}  // namespace

void set_stream_functions(PyObject* get_device, PyObject* get_stream) noexcept {
    Py_XINCREF(get_device);
    Py_XINCREF(get_stream);
    const Owned former_device(device_function), former_stream(stream_function);
    device_function = get_device;
    stream_function = get_stream;
}

PyObject* call_between_events(vectorcallfunc function, PyObject* callable, PyObject* const* args,
                              std::size_t nargsf, PyObject* keywords) noexcept {
    cuda::EventTimer& timer = cuda::EventTimer::instance();
    cuda::OpenLayer layer;
    if (const std::optional<Stream> stream = current_stream())
        timer.begin(layer, stream->handle, stream->device);
    else
        timer.leave_out();
    PyObject* const result = function(callable, args, nargsf, keywords);
    if (layer.pair == nullptr) return result;
    const std::optional<Stream> stream = current_stream();
    if (stream)
        timer.end(layer, stream->handle);
    else
        timer.abandon(layer);
    return result;
}

}  // namespace gpuprof::python
