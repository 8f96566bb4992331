#include <algorithm>
#include <vector>

#include "comm/comm_operations.h"
#include "core/check.h"

namespace longnet {
namespace {

class HostOperations final : public CommOperations {
 public:
  HostOperations(Communicator& comm, int64_t max_bytes)
      : comm_(comm),
        all_{.first = 0, .stride = 1, .count = comm.size()},
        source_(size_t(max_bytes)),
        target_(size_t(max_bytes)),
        counts_(size_t(comm.size())) {
    comm_.open_group(all_);
  }
  std::string_view transport() const override { return comm_.transport(); }
  Communicator& host() const override { return comm_; }

  int repeats_of(int64_t bytes) const override {
    return bytes < 65536 ? 50 : bytes < 1 << 20 ? 4 : 1;
  }

  void run(CommOperation what, int64_t bytes, int repeats) override {
    std::fill(counts_.begin(), counts_.end(), bytes / comm_.size());
    const auto out = std::span(source_).first(size_t(bytes));
    const auto in = std::span(target_).first(size_t(bytes));
    for (int i = 0; i < repeats; ++i) switch (what) {
        case CommOperation::kSendRecv:
          there_and_back(out, in);
          break;
        case CommOperation::kExchange:
          exchange(out, in);
          break;
        case CommOperation::kAllGather:
          comm_.wait(comm_.iall_gather(all_, in, counts_));
          break;
        case CommOperation::kAllToAll:
          comm_.wait(comm_.iall_to_all(all_, out, counts_, in, counts_));
          break;
      }
  }

  void write(Buffer at, std::span<const std::byte> bytes) override {
    std::copy(bytes.begin(), bytes.end(), buffer(at).begin());
  }
  void read(Buffer at, std::span<std::byte> bytes) override {
    std::copy_n(buffer(at).begin(), bytes.size(), bytes.begin());
  }

 private:
  std::vector<std::byte>& buffer(Buffer at) { return at == Buffer::kSource ? source_ : target_; }

  void there_and_back(std::span<const std::byte> out, std::span<std::byte> in) {
    if (comm_.rank() == 0) comm_.wait(comm_.isend(1, out));
    if (comm_.rank() <= 1) comm_.wait(comm_.irecv(1 - comm_.rank(), in));
    if (comm_.rank() == 1) comm_.wait(comm_.isend(0, out));
  }
  void exchange(std::span<const std::byte> out, std::span<std::byte> in) {
    if (comm_.rank() > 1) return;
    const auto arrives = comm_.irecv(1 - comm_.rank(), in);
    const auto leaves = comm_.isend(1 - comm_.rank(), out);
    comm_.wait(arrives);
    comm_.wait(leaves);
  }

  Communicator& comm_;
  RankGroup all_;
  std::vector<std::byte> source_, target_;
  std::vector<int64_t> counts_;
};

}  // namespace

std::string_view to_string(CommOperation what) {
  constexpr std::string_view kNames[] = {"send_recv", "exchange", "all_gather", "all_to_all"};
  return kNames[size_t(what)];
}

std::unique_ptr<CommOperations> make_host_operations(Communicator& comm, int64_t max_bytes) {
  return std::make_unique<HostOperations>(comm, max_bytes);
}

}  // namespace longnet
