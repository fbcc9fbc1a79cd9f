// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cstring>

#include "bindings/bindings.hpp"
#include "collect/autograd.hpp"

namespace py = pybind11;

namespace gpuprof::bindings {
namespace {

// The numbers of a node lie in its first words; a node is longer than that in every version.
constexpr std::size_t looked_at_words = 10;

py::object written(std::uint64_t word) {
    return word == autograd::unwritten ? py::object(py::none()) : py::object(py::int_(word));
}

py::dict ask() {
    if (!autograd::is_open()) throw py::value_error("no library of PyTorch was opened");
    const autograd::Answers answers = autograd::ask();
    py::dict result;
    result["sequence"] = answers.sequence;
    result["thread"] = answers.thread;
    result["current"] = py::make_tuple(written(answers.current[0]), written(answers.current[1]));
    return result;
}

// The address of the node of a `grad_fn`, then the node's first words.
std::vector<std::uint64_t> node_words(const py::object& grad_fn) {
    const auto size = static_cast<std::size_t>(Py_TYPE(grad_fn.ptr())->tp_basicsize);
    if (size < sizeof(PyObject) + sizeof(std::uint64_t)) throw py::value_error("no autograd node");
    std::uint64_t address = 0;
    std::memcpy(&address, reinterpret_cast<const std::byte*>(grad_fn.ptr()) + sizeof(PyObject),
                sizeof(address));
    if (address < 4096 || address % alignof(std::uint64_t) != 0) throw py::value_error("no autograd node");
    std::vector<std::uint64_t> words(1 + looked_at_words);
    words[0] = address;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): PyTorch's object, known by its bytes
    std::memcpy(&words[1], reinterpret_cast<const void*>(address), looked_at_words * sizeof(std::uint64_t));
    return words;
}

void tie(bool intrusive, std::uint32_t sequence_word, std::uint32_t thread_word) {
    using autograd::Ownership;
    if (!autograd::is_open()) throw py::value_error("no library of PyTorch was opened");
    if (sequence_word >= looked_at_words || thread_word >= looked_at_words)
        throw py::value_error("the words of a node were not looked at so far");
    const autograd::NodeLayout layout{intrusive ? Ownership::intrusive : Ownership::shared, sequence_word * 8,
                                      thread_word * 8};
    autograd::tie(&layout);
}

void tie_layers() {
    if (!autograd::is_open()) throw py::value_error("no library of PyTorch was opened");
    autograd::tie(nullptr);
}

}  // namespace

void bind_autograd(py::module_& module) {
    module.def(
        "autograd_open",
        [](const std::string& library) { return reason_or_none(autograd::open_library(library)); },
        py::arg("library"));
    module.def("autograd_ask", &ask);
    module.def("autograd_node_words", &node_words, py::arg("grad_fn"));
    module.def("autograd_tie", &tie, py::arg("intrusive"), py::arg("sequence_word"), py::arg("thread_word"));
    module.def("autograd_tie_layers", &tie_layers);
    module.def("autograd_untie", &autograd::untie);
}

}  // namespace gpuprof::bindings
