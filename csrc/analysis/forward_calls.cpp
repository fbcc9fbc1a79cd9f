// SPDX-License-Identifier: Apache-2.0
#include "analysis/forward_calls.hpp"

#include <algorithm>
#include <utility>

namespace gpuprof {

ForwardCalls::ForwardCalls(std::span<const ThreadPiece> pieces, const std::vector<std::uint32_t>& names) {
    if (!std::ranges::any_of(pieces, &ThreadPiece::has_backward_nodes)) return;
    for (std::size_t begin = 0; begin < pieces.size();) {
        const std::uint32_t number = pieces[begin].thread_number;
        const auto end =
            std::find_if(pieces.begin() + static_cast<std::ptrdiff_t>(begin), pieces.end(),
                         [&](const ThreadPiece& piece) { return piece.thread_number != number; });
        const auto count = static_cast<std::size_t>(end - pieces.begin()) - begin;
        const std::span thread = pieces.subspan(begin, count);
        if (std::ranges::any_of(thread, &ThreadPiece::has_layer_nodes)) add_thread(thread, names);
        begin += count;
    }
}

// Layer calls of one thread end in the order of a stack, whatever its asynchronous tasks do: a call is one
// frame of the machine's own.
void ForwardCalls::add_thread(std::span<const ThreadPiece> pieces, const std::vector<std::uint32_t>& names) {
    Reading reading;
    auto run_wide = [&](std::uint32_t name) { return names[name < names.size() ? name : 0]; };
    for (const ThreadPiece& piece : pieces) {
        for (const Event& event : piece.events) switch (static_cast<EventKind>(event.kind)) {
                case EventKind::layer_begin:
                    begin(reading, run_wide(event.name));
                    break;
                case EventKind::layer_nodes:
                    reading.first = event.ticks;
                    reading.count = event.name;
                    break;
                case EventKind::layer_end:
                    end(reading, run_wide(event.name));
                    break;
                default:
                    break;
            }
        release_pages(piece.events);
    }
    if (reading.calls.empty()) return;
    reading.calls.shrink_to_fit();
    const std::uint64_t thread = reading.reached >> node_sequence_bits;
    threads_.try_emplace(thread, std::move(reading.calls));
}

void ForwardCalls::begin(Reading& reading, std::uint32_t name) {
    const bool is_outermost = reading.open.empty();
    const std::uint32_t path = path_below(is_outermost ? no_path : reading.open.back().path, name);
    const std::uint32_t around = is_outermost ? none : reading.open.back().call;
    const auto call = static_cast<std::uint32_t>(std::min<std::size_t>(reading.calls.size(), none - 1));
    // Its first node is known at its end, and is none before those that the thread has made by now.
    if (reading.calls.size() == call) reading.calls.push_back({reading.reached, 0, path, around});
    reading.open.push_back({name, path, call});
}

void ForwardCalls::end(Reading& reading, std::uint32_t name) {
    const std::uint32_t count = std::exchange(reading.count, 0);
    const auto found = std::find_if(reading.open.rbegin(), reading.open.rend(),
                                    [&](const Open& open) { return open.name == name; });
    if (found == reading.open.rend()) return;
    const std::uint32_t number = found->call;
    reading.open.erase(std::next(found).base());
    if (number >= reading.calls.size()) return;
    if (count > 0 && reading.first >= reading.calls[number].first) {
        reading.calls[number].first = reading.first;
        reading.calls[number].count = count;
        reading.reached = std::max(reading.reached, reading.first + count);
    } else if (number + 1 == reading.calls.size()) {
        reading.calls.pop_back();
    }
}

std::uint32_t ForwardCalls::path_below(std::uint32_t before, std::uint32_t name) {
    const auto [place, is_new] =
        paths_.try_emplace({before, name}, static_cast<std::uint32_t>(steps_.size()));
    if (is_new) steps_.push_back({before, name});
    return place->second;
}

std::uint32_t ForwardCalls::path_of(std::uint64_t node_mark) const noexcept {
    const auto thread = threads_.find(node_mark >> node_sequence_bits);
    if (thread == threads_.end()) return no_path;
    const Calls& calls = thread->second;
    const auto after = std::ranges::upper_bound(calls, node_mark, {}, &Call::first);
    // The last call that began before the node, or one around it.
    for (auto at = static_cast<std::size_t>(after - calls.begin()); at-- > 0;) {
        const Call& call = calls[at];
        if (node_mark - call.first < call.count) return call.path;
        if (call.around == none) break;
        at = std::size_t{call.around} + 1;
    }
    return no_path;
}

}  // namespace gpuprof
