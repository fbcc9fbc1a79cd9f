// SPDX-License-Identifier: Apache-2.0
#include "python/code_names.hpp"

#include <Python.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "python/code_positions.hpp"
#include "python/interpreter_layout.h"

namespace gpuprof::python {
namespace {

constexpr std::uint32_t hidden_frame = UINT32_MAX;
constexpr Py_ssize_t longest_text = 4'096;
constexpr Py_ssize_t longest_table = 1 << 20;
// Limits the memory for a program that creates functions or stacks without end: their numbers restart.
constexpr std::size_t most_known = 1 << 18;

bool is_of(const std::byte* copy, const PyTypeObject& type) noexcept {
    return field<Address>(copy, offsetof(PyObject, ob_type)) == reinterpret_cast<Address>(&type);
}

void add_utf8(std::string& text, std::uint32_t point) {
    const auto add = [&text](std::uint32_t byte) { text.push_back(static_cast<char>(byte)); };
    if (point < 0x80) return add(point);
    if (point >= 0xD800 && point < 0xE000) {  // a byte of a path that is no text
        std::array<char, 8> escaped{};
        std::snprintf(escaped.data(), escaped.size(), "\\u%04x", point);
        text += escaped.data();
        return;
    }
    if (point < 0x800) {
        add(0xC0U | point >> 6U);
    } else if (point < 0x10000) {
        add(0xE0U | point >> 12U);
        add(0x80U | (point >> 6U & 0x3FU));
    } else {
        add(0xF0U | point >> 18U);
        add(0x80U | (point >> 12U & 0x3FU));
        add(0x80U | (point >> 6U & 0x3FU));
    }
    add(0x80U | (point & 0x3FU));
}

template <typename Unit>
bool read_units(Address data, Py_ssize_t length, std::string& text) {
    std::vector<Unit> units(static_cast<std::size_t>(length));
    if (!read_memory(data, units.data(), units.size() * sizeof(Unit))) return false;
    for (const Unit unit : units) add_utf8(text, unit);
    return true;
}

bool read_text(Address object, std::string& text) {
    PyASCIIObject head;
    if (!read_memory(object, &head, sizeof head)) return false;
    if (!is_of(reinterpret_cast<const std::byte*>(&head), PyUnicode_Type) || !head.state.compact)
        return false;
    if (head.length < 0 || head.length > longest_text) return false;
    text.clear();
    if (head.state.ascii) return read_units<unsigned char>(object + sizeof(PyASCIIObject), head.length, text);
    const Address data = object + sizeof(PyCompactUnicodeObject);
    if (head.state.kind == PyUnicode_1BYTE_KIND) return read_units<Py_UCS1>(data, head.length, text);
    if (head.state.kind == PyUnicode_2BYTE_KIND) return read_units<Py_UCS2>(data, head.length, text);
    return head.state.kind == PyUnicode_4BYTE_KIND && read_units<Py_UCS4>(data, head.length, text);
}

bool read_bytes(Address object, std::vector<unsigned char>& bytes) {
    PyVarObject head;
    if (!read_memory(object, &head, sizeof head)) return false;
    if (!is_of(reinterpret_cast<const std::byte*>(&head), PyBytes_Type)) return false;
    if (head.ob_size < 0 || head.ob_size > longest_table) return false;
    bytes.resize(static_cast<std::size_t>(head.ob_size));
    return read_memory(object + offsetof(PyBytesObject, ob_sval), bytes.data(), bytes.size());
}

// Whether an instruction is one of the code's: a torn frame may have those of another one.
bool has_instruction(const std::byte* code, std::int32_t instruction) noexcept {
    if (gpuprof_layout.code_instructions == GPUPROF_NO_FIELD) return instruction >= -2;
    const auto units = field<Py_ssize_t>(code, offsetof(PyVarObject, ob_size));
    return instruction >= -2 && instruction < 2 * units;  // -2: before the first one
}

}  // namespace

std::size_t CodeNames::StackHash::operator()(const std::vector<std::uint32_t>& frames) const noexcept {
    std::uint64_t hash = 0xCBF29CE484222325U;
    for (const std::uint32_t frame : frames) hash = (hash ^ frame) * 0x100000001B3U;
    return static_cast<std::size_t>(hash ^ hash >> 32U);
}

std::size_t CodeNames::SiteHash::operator()(const SiteKey& key) const noexcept {
    const auto at = static_cast<std::uint32_t>(key.instruction);
    return static_cast<std::size_t>((key.code ^ (std::uint64_t{at} << 40U)) * 0x9E3779B97F4A7C15U);
}

CodeNames::CodeNames(FrameNaming naming, StackFile& file) : naming_(std::move(naming)), file_(file) {}

std::optional<CodeNames::Named> CodeNames::name(const std::vector<RawFrame>& frames) {
    const std::size_t bytes = gpuprof_layout.code_bytes;
    addresses_.clear();
    for (const RawFrame& frame : frames) addresses_.push_back(frame.code);
    copies_.resize(frames.size() * bytes);
    if (read_pieces(addresses_, copies_.data(), bytes) < frames.size()) return std::nullopt;
    numbers_.clear();
    std::uint32_t site = StackFile::no_site;
    for (std::size_t at = 0; at < frames.size(); ++at) {
        const std::byte* copy = copies_.data() + at * bytes;
        const Known* code = known(frames[at].code, copy, frames[at].instruction);
        if (code == nullptr) return std::nullopt;
        if (code->number == hidden_frame) continue;
        if (at == 0) site = site_number(frames[at], copy, *code);
        numbers_.push_back(code->number);
    }
    if (frames.size() == FrameReader::deepest_stack || numbers_.size() > StackFile::longest_stack - 10) {
        numbers_.resize(std::min(numbers_.size(), StackFile::longest_stack - 10));
        numbers_.push_back(frame_number(naming_.cut_off));
    }
    std::reverse(numbers_.begin(), numbers_.end());
    return Named{stack_number(), site};
}

const CodeNames::Known* CodeNames::known(Address code, const std::byte* copy, std::int32_t instruction) {
    if (!is_of(copy, PyCode_Type) || !has_instruction(copy, instruction)) return nullptr;
    const auto path_object = field<Address>(copy, gpuprof_layout.code_path);
    const auto name_object = field<Address>(copy, gpuprof_layout.code_name);
    const int first_line = field<int>(copy, gpuprof_layout.code_first_line);
    if (codes_.size() >= most_known) codes_.clear();
    Known& entry = codes_[code];
    if (entry.path == path_object && entry.name == name_object && entry.first_line == first_line)
        return &entry;
    std::string path;
    std::string name;
    if (!read_text(path_object, path) || !read_text(name_object, name)) {
        codes_.erase(code);
        return nullptr;
    }
    const bool is_hidden = std::any_of(naming_.hidden.begin(), naming_.hidden.end(),
                                       [&path](const std::string& begin) { return path.starts_with(begin); });
    const std::uint32_t number = is_hidden ? hidden_frame : frame_number(text_of(path, name, first_line));
    entry = {path_object, name_object, first_line, number};
    return &entry;
}

std::string CodeNames::text_of(const std::string& path, const std::string& name, int first_line) const {
    if (name.ends_with(naming_.module_call) && path.ends_with(naming_.module_file))
        return naming_.module_call_text;
    const std::string shown = short_path(path);
    if (name == "<module>") return name + " (" + shown + ")";
    return name + " (" + shown + ":" + std::to_string(first_line) + ")";
}

std::string CodeNames::short_path(const std::string& path) const {
    for (const std::string& mark : naming_.marks)
        if (const std::size_t at = path.rfind(mark); at != std::string::npos)
            return path.substr(at + mark.size());
    for (const auto& [prefix, shown] : naming_.prefixes)
        if (path.starts_with(prefix)) return shown + path.substr(prefix.size());
    return path;
}

std::uint32_t CodeNames::frame_number(const std::string& text) {
    const auto [found, is_new] = frames_.try_emplace(text, static_cast<std::uint32_t>(frames_.size()));
    if (is_new) file_.add_frame(found->second, text);
    return found->second;
}

std::uint32_t CodeNames::stack_number() {
    if (stacks_.size() >= most_known) stacks_.clear();
    const auto [found, is_new] = stacks_.try_emplace(numbers_, next_stack_);
    if (is_new) file_.add_stack(next_stack_++, numbers_);
    return found->second;
}

std::uint32_t CodeNames::site_number(const RawFrame& frame, const std::byte* copy, const Known& of) {
    if (sites_.size() >= most_known) sites_.clear();
    const auto [found, is_new] = sites_.try_emplace({frame.code, frame.instruction, of.number}, next_site_);
    if (!is_new) return found->second;
    std::vector<unsigned char> table;
    std::string path;
    if (!read_bytes(field<Address>(copy, gpuprof_layout.code_table), table) || !read_text(of.path, path)) {
        sites_.erase(found);
        return StackFile::no_site;
    }
    const CodePosition at = code_position(table, of.first_line, frame.instruction);
    file_.add_site(next_site_, {of.number, at.line, at.end_line, at.column, at.end_column}, path);
    return next_site_++;
}

}  // namespace gpuprof::python
