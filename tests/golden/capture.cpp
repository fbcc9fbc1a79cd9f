// SPDX-License-Identifier: Apache-2.0
// Runs known work on the GPU and writes CUPTI's raw buffers, for tests/native/test_cupti_replay.cpp.
//
//     cupti_capture CASE FILE.cupti [CUPTI's folder...]
#include <algorithm>
#include <cstdio>

#include "capture_file.hpp"
#include "cupti_session.hpp"
#include "gpu_work.hpp"

namespace {

using namespace gpuprof::golden;
using gpuprof::cupti::DecodeCounts;

// What a program launches while CUPTI records all kinds, until `save`.
class Recorded {
  public:
    explicit Recorded(const std::vector<std::string>& folders) : session(folders) {
        session.enable(all_kinds);
    }
    void launched(const char* what, std::uint64_t count) {
        capture_.facts["launched_" + std::string(what)] += count;
    }

    // The buffers come with the library's own walk through them.
    void save(const char* path) {
        session.flush();
        session.flush(abi::flush_forced);
        capture_.version = session.version();
        capture_.facts["dropped"] = session.dropped();
        capture_.buffers = Session::take();
        DecodeCounts counts;
        for (auto& buffer : capture_.buffers) counts += decode(buffer);
        capture_.facts["decoded_kernels"] = counts.kernels;
        capture_.facts["decoded_transfers"] = counts.transfers;
        capture_.facts["decoded_synchronizations"] = counts.synchronizations;
        capture_.facts["decoded_unfinished"] = counts.unfinished;
        CaptureWriter(path).write(capture_);
        for (const auto& [name, value] : capture_.facts)
            std::printf("%s %llu\n", name.c_str(), static_cast<unsigned long long>(value));
    }

    Session session;

  private:
    DecodeCounts decode(std::span<std::uint8_t> buffer) {
        const auto note = [this](const char* name) {
            if (name == nullptr) return 0u;
            capture_.names.emplace(reinterpret_cast<std::uint64_t>(name), name);
            return 1u;
        };
        std::vector<gpuprof::GpuRecord> records;
        return gpuprof::cupti::decode_buffer(
            buffer, gpuprof::cupti::Stride(session.api().get_next_record, session.version()), note, records);
    }

    Capture capture_;
};

void streams(Gpu& gpu, Recorded& recorded) {
    constexpr unsigned rounds = 4;
    const Stream made[] = {gpu.make_stream(), gpu.make_stream(), gpu.make_stream()};
    for (unsigned round = 1; round <= rounds; ++round)
        for (unsigned index = 0; index < std::size(made); ++index) {
            gpu.spin(20'000, 10 * round + index, made[index]);
            gpu.fill(10 * round + index, made[index]);
        }
    gpu.synchronize();
    recorded.launched("kernels", 2 * rounds * std::size(made));
}

void transfers(Gpu& gpu, Recorded& recorded) {
    for (const std::size_t size : {std::size_t{1}, std::size_t{256}, Gpu::bytes}) {
        gpu.set(size);
        gpu.copy_in(size);
        gpu.fill(1);
        gpu.copy_out(size);
    }
    gpu.synchronize();
    recorded.launched("kernels", 3);
    recorded.launched("transfers", 9);
}

void graph(Gpu& gpu, Recorded& recorded) {
    constexpr unsigned replays = 3;
    const Stream stream = gpu.make_stream();
    Graph captured(gpu, stream);
    for (unsigned blocks = 1; blocks <= 4; ++blocks) gpu.fill(blocks, stream);
    gpu.set(Gpu::bytes, stream);
    gpu.copy_out(Gpu::bytes, stream);
    captured.end_capture();
    captured.instantiate();
    for (unsigned replay = 0; replay < replays; ++replay) captured.launch();
    gpu.synchronize();
    recorded.launched("kernels", 4 * replays);
    recorded.launched("transfers", 2 * replays);
}

// More than one buffer holds, and there is one.
void dropped(Gpu& gpu, Recorded& recorded) {
    constexpr unsigned count = 3000;
    {
        const std::lock_guard lock(buffers().mutex);
        buffers().left = 1;
    }
    for (unsigned number = 0; number < count; ++number) gpu.fill(1);
    gpu.synchronize();
    recorded.launched("kernels", count);
}

// The first flush is forced on a kernel that runs for some tenths of a second.
void forced_flush(Gpu& gpu, Recorded& recorded) {
    gpu.fill(1);
    gpu.synchronize();
    gpu.spin(500'000'000);
    gpu.fill(2);
    recorded.session.flush(abi::flush_forced);
    gpu.synchronize();
    gpu.fill(3);
    gpu.copy_out(Gpu::bytes);
    gpu.synchronize();
    recorded.launched("kernels", 4);
    recorded.launched("transfers", 1);
}

struct Case {
    const char* name;
    void (*run)(Gpu& gpu, Recorded& recorded);
};
constexpr Case cases[] = {{"streams", streams},
                          {"transfers", transfers},
                          {"graph", graph},
                          {"dropped", dropped},
                          {"forced_flush", forced_flush}};

int usage() {
    std::fprintf(stderr, "usage: cupti_capture CASE FILE.cupti [CUPTI's folder...], where CASE is one of:");
    for (const Case& each : cases) std::fprintf(stderr, " %s", each.name);
    std::fprintf(stderr, "\n");
    return 2;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return usage();
    const auto* const chosen = std::find_if(std::begin(cases), std::end(cases), [&](const Case& each) {
        return std::string(each.name) == argv[1];
    });
    if (chosen == std::end(cases)) return usage();
    try {
        Gpu gpu;
        Recorded recorded({argv + 3, argv + argc});
        chosen->run(gpu, recorded);
        recorded.save(argv[2]);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "cupti_capture: %s\n", error.what());
        return 1;
    }
}
