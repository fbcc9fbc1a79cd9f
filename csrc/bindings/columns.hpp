// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

#include "analysis/call_tree.hpp"

namespace gpuprof::bindings {

template <typename T>
pybind11::array_t<T> to_array(const std::vector<T>& values) {
    return pybind11::array_t<T>(static_cast<pybind11::ssize_t>(values.size()), values.data());
}

// Names come from anywhere: bytes that are not UTF-8 are shown escaped.
pybind11::str to_text(const std::string& bytes);

// The nodes in pre-order.
pybind11::dict tree_columns(const CallTree& tree);

}  // namespace gpuprof::bindings
