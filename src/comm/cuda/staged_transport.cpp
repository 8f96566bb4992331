// mpi_host: device -> page-locked host memory -> the host communicator -> page-locked -> device.
// Never hands a device pointer to MPI, so it works with one that knows no CUDA.
#include <algorithm>
#include <deque>

#include "comm/cuda/device_transport.h"
#include "core/check.h"

namespace longnet {
namespace {

class StagedTransport final : public DeviceTransport {
 public:
  explicit StagedTransport(Communicator& host) : DeviceTransport(host) {}
  std::string_view name() const override { return "mpi_host"; }
  void open(std::span<const std::span<std::byte>>) override {}
  void open_group(const RankGroup&) override {}

  Ticket post(std::span<const Transfer> transfers, const Stream& stream) override {
    count(transfers);
    if (used_posts_ == int(posts_.size())) posts_.emplace_back();
    const Ticket ticket = used_posts_++;
    Post& post = posts_[size_t(ticket)];
    for (const Transfer& t : transfers) {
      Part& part = post.parts.emplace_back(Part{.transfer = t, .staging = take(t.bytes)});
      if (t.kind == Transfer::Kind::kSend) stream.copy(part.staging.data(), t.data, t.bytes);
      if (t.kind == Transfer::Kind::kRecv)
        part.request = host().irecv(t.peer, {part.staging.data(), size_t(t.bytes)});
    }
    // The host sends what the device has written.
    stream.synchronize();
    for (Part& part : post.parts)
      if (part.transfer.kind == Transfer::Kind::kSend)
        part.request =
            host().isend(part.transfer.peer, {part.staging.data(), size_t(part.transfer.bytes)});
    return ticket;
  }

  void complete(Ticket ticket, const Stream& waiting) override {
    Post& post = posts_.at(size_t(ticket));
    if (!post.arrived) {
      for (Part& part : post.parts) {
        if (part.transfer.kind != Transfer::Kind::kRecv) continue;
        host().wait(part.request);
        landing_.copy(part.transfer.data, part.staging.data(), part.transfer.bytes);
      }
      post.landed.record(landing_);
      for (Part& part : post.parts)
        if (part.transfer.kind == Transfer::Kind::kSend) host().wait(part.request);
      post.arrived = true;
    }
    waiting.wait(post.landed);
  }

  void finish() override {
    landing_.synchronize();
    for (Post& post : posts_) {
      for (Part& part : post.parts) free_.push_back(std::move(part.staging));
      post.parts.clear();
      post.arrived = false;
    }
    used_posts_ = 0;
  }

 private:
  struct Part {
    Transfer transfer;
    PinnedBuffer staging;
    Communicator::Request request = -1;
  };
  struct Post {
    std::vector<Part> parts{};
    Event landed{};
    bool arrived = false;
  };

  // The smallest free block that fits, else a new one: a warm run allocates none.
  PinnedBuffer take(int64_t bytes) {
    auto best = free_.end();
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->size() >= bytes && (best == free_.end() || it->size() < best->size())) best = it;
    if (best == free_.end()) return PinnedBuffer(bytes);
    PinnedBuffer taken = std::move(*best);
    free_.erase(best);
    return taken;
  }

  Stream landing_{Stream::Priority::kHigh};
  std::deque<Post> posts_;  // with their events, for the next run as well
  int used_posts_ = 0;
  std::vector<PinnedBuffer> free_;
};

}  // namespace

std::unique_ptr<DeviceTransport> make_staged_transport(Communicator& host) {
  return std::make_unique<StagedTransport>(host);
}

}  // namespace longnet
