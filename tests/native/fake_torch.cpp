// SPDX-License-Identifier: Apache-2.0
// Replaces libtorch_cpu in the functions that the autograd numbers come from. Built twice: with nodes
// that are owned by std::shared_ptr, and with nodes that count their owners themselves.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#define FAKE_TORCH_API __attribute__((visibility("default")))

namespace {
std::uint64_t next_number = 0;
}

namespace at {
namespace sequence_number {
FAKE_TORCH_API std::uint64_t peek();
std::uint64_t peek() {
    return next_number;
}
}  // namespace sequence_number

struct FAKE_TORCH_API RecordFunction {
    static std::uint64_t currentThreadId();
};
std::uint64_t RecordFunction::currentThreadId() {
    return 7;
}
}  // namespace at

namespace torch::autograd {

struct Numbers {
    std::uint64_t sequence = 0;
    std::uint64_t topological = 1;
    std::uint64_t has_parent = 0;
    std::uint64_t thread = 0;
};

#ifdef FAKE_TORCH_INTRUSIVE
struct Node {
    virtual ~Node() = default;
    std::atomic<std::uint64_t> owners{(std::uint64_t{1} << 32) + 0};
    Numbers numbers;
};
class NodePointer {
  public:
    NodePointer() = default;
    explicit NodePointer(Node* node) : node_(node) { retain(); }
    NodePointer(const NodePointer& other) : node_(other.node_) { retain(); }
    NodePointer& operator=(NodePointer other) {
        std::swap(node_, other.node_);
        return *this;
    }
    ~NodePointer() {
        if (node_ != nullptr && static_cast<std::uint32_t>(--node_->owners) == 0) delete node_;
    }
    Node* get() const { return node_; }
    long use_count() const { return static_cast<long>(static_cast<std::uint32_t>(node_->owners.load())); }

  private:
    void retain() {
        if (node_ != nullptr) ++node_->owners;
    }
    Node* node_ = nullptr;
};
NodePointer make_node() {
    return NodePointer(new Node);
}
#else
struct Node : std::enable_shared_from_this<Node> {
    virtual ~Node() = default;
    Numbers numbers;
};
using NodePointer = std::shared_ptr<Node>;
NodePointer make_node() {
    return std::make_shared<Node>();
}
#endif

namespace {
NodePointer current;
}

FAKE_TORCH_API NodePointer get_current_node();
NodePointer get_current_node() {
    return current;
}

}  // namespace torch::autograd

// For the test: evaluates a new node with these numbers, or none.
extern "C" FAKE_TORCH_API void fake_evaluate(std::uint64_t sequence, std::uint64_t thread) {
    torch::autograd::current = torch::autograd::make_node();
    torch::autograd::current.get()->numbers.sequence = sequence;
    torch::autograd::current.get()->numbers.thread = thread;
}
extern "C" FAKE_TORCH_API void fake_finish() {
    torch::autograd::current = {};
}
extern "C" FAKE_TORCH_API long fake_owners() {
    return torch::autograd::current.use_count();
}
extern "C" FAKE_TORCH_API std::uint32_t fake_offset_of_sequence() {
    torch::autograd::Node* const node = torch::autograd::current.get();
    return static_cast<std::uint32_t>(reinterpret_cast<std::byte*>(&node->numbers.sequence) -
                                      reinterpret_cast<std::byte*>(node));
}
