// SPDX-License-Identifier: Apache-2.0
#include "cupti/counters_choice.hpp"

#include <array>
#include <string_view>

namespace gpuprof::cupti {
namespace {

// A metric with the counters that give it, the first one that a chip has is taken.
struct Candidate {
    const char* name;
    const char* unit;
    std::array<const char*, 3> counters;
};

constexpr Candidate first_candidates[] = {
    {"dram_bytes", "byte", {"dram__bytes.sum"}},
    {"time_ns", "ns", {"gpu__time_duration.sum"}},
};

struct TensorCandidate {
    std::string_view type;
    Candidate candidate;
};

// Operations of the tensor cores by what they multiply; a multiply-add is two. If a chip distinguishes what
// fp16 is added up in, that is fp32, as PyTorch's libraries do it.
constexpr TensorCandidate tensor_candidates[] = {
    {"bf16", {"tensor_operations.bf16", "operation", {"sm__ops_path_tensor_src_bf16_dst_fp32.sum"}}},
    {"fp16",
     {"tensor_operations.fp16",
      "operation",
      {"sm__ops_path_tensor_src_fp16.sum", "sm__ops_path_tensor_src_fp16_dst_fp32.sum",
       "sm__ops_path_tensor_src_fp16_bf16_tf32_dst_fp32.sum"}}},
    {"tf32", {"tensor_operations.tf32", "operation", {"sm__ops_path_tensor_src_tf32_dst_fp32.sum"}}},
    {"fp64", {"tensor_operations.fp64", "operation", {"sm__ops_path_tensor_src_fp64.sum"}}},
    {"int8", {"tensor_operations.int8", "operation", {"sm__ops_path_tensor_src_int8.sum"}}},
    {"fp8",
     {"tensor_operations.fp8",
      "operation",
      {"sm__ops_path_tensor_src_fp8.sum", "sm__ops_path_tensor_src_fp8_dst_fp32.sum"}}},
};

constexpr Candidate last_candidates[] = {
    {"l2_bytes", "byte", {"lts__t_bytes.sum"}},
    {"tensor_active", "%", {"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"}},
    {"dram_read_bytes", "byte", {"dram__bytes_read.sum"}},
    {"dram_written_bytes", "byte", {"dram__bytes_write.sum"}},
};

class Choice {
  public:
    explicit Choice(const CountPasses& count_passes) : count_passes_(count_passes) {}

    void add(const Candidate& candidate) {
        ChosenMetric metric{candidate.name, candidate.unit};
        for (const char* const counter : candidate.counters) {
            if (counter == nullptr) break;
            counters_.push_back(counter);
            if (count_passes_(counters_) == 1) {
                metric.counter = counter;
                break;
            }
            counters_.pop_back();
        }
        metrics.push_back(metric);
    }

    std::vector<ChosenMetric> metrics;

  private:
    const CountPasses& count_passes_;
    std::vector<const char*> counters_;
};

}  // namespace

std::vector<ChosenMetric> choose_metrics(std::span<const std::string> types,
                                         const CountPasses& count_passes) {
    Choice choice(count_passes);
    for (const Candidate& candidate : first_candidates) choice.add(candidate);
    for (const std::string& type : types)
        for (const TensorCandidate& tensor : tensor_candidates)
            if (tensor.type == type) choice.add(tensor.candidate);
    for (const Candidate& candidate : last_candidates) choice.add(candidate);
    return choice.metrics;
}

}  // namespace gpuprof::cupti
