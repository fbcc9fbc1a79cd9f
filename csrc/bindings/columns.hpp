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

template <typename T>
using Column = pybind11::array_t<T, pybind11::array::c_style | pybind11::array::forcecast>;

template <typename T>
std::vector<T> values_of(const Column<T>& column) {
    return {column.data(), column.data() + column.size()};
}

template <typename T>
Column<T> column_of(const pybind11::dict& columns, const char* name, pybind11::ssize_t rows) {
    auto array = columns[name].cast<Column<T>>();
    if (array.ndim() != 1 || array.size() != rows)
        throw pybind11::value_error("the columns differ in length");
    return array;
}

// Names come from anywhere: bytes that are not UTF-8 are shown escaped.
pybind11::str to_text(const std::string& bytes);

// The nodes in pre-order.
pybind11::dict tree_columns(const CallTree& tree);

}  // namespace gpuprof::bindings
