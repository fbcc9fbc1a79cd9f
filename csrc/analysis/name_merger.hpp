// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "analysis/name_class.hpp"
#include "analysis/segment_reader.hpp"

namespace gpuprof {

// Names of all processes under one numbering.
class NameMerger {
  public:
    explicit NameMerger(std::vector<RecordedName>& names) : names_(names) {}

    std::uint32_t add(const std::string& text, std::uint32_t scope) {
        const auto [place, is_new] = ids_.try_emplace({text, scope}, names_.size() + 1);
        if (is_new) {
            names_.push_back({text, scope});
            classes_.push_back(classify_name(text));
            scopes_.push_back(scope);
        }
        return place->second;
    }

    // Run-wide id for each of a process's ids; index 0 is a lost name.
    std::vector<std::uint32_t> adopt(const RecordedProcess& process) {
        std::vector<std::uint32_t> run_wide;
        adopt_new(process, run_wide);
        return run_wide;
    }
    // The same for the names that `run_wide` lacks.
    void adopt_new(const RecordedProcess& process, std::vector<std::uint32_t>& run_wide) {
        if (run_wide.empty()) run_wide.push_back(add("(lost name)", 0));
        for (std::size_t i = run_wide.size() - 1; i < process.names.size(); ++i) {
            const RecordedName& name = process.names[i];
            run_wide.push_back(add(name.text, name.scope < run_wide.size() ? scope_id(name, run_wide) : 0));
        }
    }

    const std::vector<NameClass>& classes() const noexcept { return classes_; }
    const std::vector<std::uint32_t>& scopes() const noexcept { return scopes_; }

  private:
    static std::uint32_t scope_id(const RecordedName& name, const std::vector<std::uint32_t>& run_wide) {
        return name.scope == 0 ? 0 : run_wide[name.scope];
    }

    std::vector<RecordedName>& names_;
    std::vector<NameClass> classes_{NameClass::plain};  // index 0 is never used
    std::vector<std::uint32_t> scopes_{0};
    std::map<std::pair<std::string, std::uint32_t>, std::uint32_t> ids_;
};

}  // namespace gpuprof
