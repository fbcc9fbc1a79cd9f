// SPDX-License-Identifier: Apache-2.0
#include "analysis/name_class.hpp"

#include <algorithm>
#include <iterator>

namespace gpuprof {
namespace {

constexpr std::string_view engine_prefix = "autograd::engine::evaluate_function: ";
constexpr std::string_view accumulation_node = "torch::autograd::AccumulateGrad";

// What PyTorch does on the side of announcing and of autograd. torch.profiler leaves the same names out.
constexpr std::string_view bookkeeping_names[] = {
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
};

}  // namespace

NameClass classify_name(std::string_view name) noexcept {
    if (std::ranges::find(bookkeeping_names, name) != std::end(bookkeeping_names))
        return NameClass::bookkeeping;
    if (name.starts_with(engine_prefix))
        return name.substr(engine_prefix.size()) == accumulation_node ? NameClass::accumulation
                                                                      : NameClass::backward;
    const std::size_t mark = name.find("::");
    if (mark == std::string_view::npos || mark == 0) return NameClass::plain;
    return name.find_first_of(" #\n") == std::string_view::npos ? NameClass::qualified : NameClass::plain;
}

}  // namespace gpuprof
