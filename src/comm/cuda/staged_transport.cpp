// mpi_host: device -> page-locked host memory -> the host communicator -> page-locked -> device.
// MPI never gets a device pointer, so it needs no support for CUDA.
#include <cstring>
#include <deque>
#include <map>

#include "comm/cuda/device_transport.h"

namespace longnet {
namespace {

class StagedTransport final : public DeviceTransport {
 public:
  explicit StagedTransport(Communicator& host)
      : DeviceTransport(DeviceTransportKind::kMpiHost, host) {}
  void open(std::span<const std::span<std::byte>>) override {}
  void open_group(const RankGroup&) override {}

  void finish() override {
    landing_.synchronize();
    for (auto& parts : staged_) {
      for (Part& part : parts) {
        // No message of the next run finds rows of this one.
        std::memset(part.staging.data(), 0xFF, size_t(part.staging.size()));
        free_.emplace(part.staging.size(), std::move(part.staging));
      }
      parts.clear();
    }
    DeviceTransport::finish();
  }

 private:
  struct Part {
    PinnedBuffer staging;
    Communicator::Request request = -1;
  };

  void start(Post& post, const Stream& stream) override {
    if (size_t(post.ticket) >= staged_.size()) staged_.resize(size_t(post.ticket) + 1);
    auto& parts = staged_[size_t(post.ticket)];
    for (const Transfer& t : post.transfers) {
      Part& part = parts.emplace_back(Part{.staging = take(t.bytes)});
      if (t.kind == Transfer::Kind::kSend) stream.copy(part.staging.data(), t.data, t.bytes);
      if (t.kind == Transfer::Kind::kRecv)
        part.request = host().irecv(t.peer, {part.staging.data(), size_t(t.bytes)});
    }
    // The host sends what the device has written.
    stream.synchronize();
    for (size_t i = 0; i < parts.size(); ++i)
      if (const Transfer& t = post.transfers[i]; t.kind == Transfer::Kind::kSend)
        parts[i].request = host().isend(t.peer, {parts[i].staging.data(), size_t(t.bytes)});
  }

  void arrive(Post& post) override {
    const auto& parts = staged_[size_t(post.ticket)];
    for (size_t i = 0; i < parts.size(); ++i) {
      const Transfer& t = post.transfers[i];
      if (t.kind != Transfer::Kind::kRecv) continue;
      host().wait(parts[i].request);
      landing_.copy(t.data, parts[i].staging.data(), t.bytes);
      counters_.received(t.bytes);
    }
    post.end_on(landing_);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (post.transfers[i].kind != Transfer::Kind::kSend) continue;
      host().wait(parts[i].request);
      counters_.sent(post.transfers[i].bytes);
    }
  }

  // The smallest free block that fits, else a new one: a warm run allocates none.
  PinnedBuffer take(int64_t bytes) {
    const auto best = free_.lower_bound(bytes);
    if (best == free_.end()) return PinnedBuffer(bytes);
    PinnedBuffer taken = std::move(best->second);
    free_.erase(best);
    return taken;
  }

  Stream landing_{Stream::Priority::kHigh};
  std::deque<std::vector<Part>> staged_;       // parts of each ticket
  std::multimap<int64_t, PinnedBuffer> free_;  // free blocks by size
};

}  // namespace

std::unique_ptr<DeviceTransport> make_staged_transport(Communicator& host) {
  return std::make_unique<StagedTransport>(host);
}

}  // namespace longnet
