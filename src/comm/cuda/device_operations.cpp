// The operations of `lnbench comm` between GPUs: messages and collectives of a device transport.
#include <algorithm>
#include <array>
#include <exception>

#include "comm/comm_operations.h"
#include "comm/cuda/device_transport.h"

namespace longnet {
namespace {

class DeviceOperations final : public CommOperations {
 public:
  DeviceOperations(std::unique_ptr<DeviceTransport> transport, int64_t max_bytes)
      : transport_(std::move(transport)),
        all_{.first = 0, .stride = 1, .count = host().size()},
        source_(memory_, "source", max_bytes, DeviceBuffer::Kind::kShared),
        target_(memory_, "target", max_bytes, DeviceBuffer::Kind::kShared) {
    const std::array buffers{std::span(source_.data(), size_t(max_bytes)),
                             std::span(target_.data(), size_t(max_bytes))};
    transport_->open(buffers);
    transport_->open_group(all_);
  }
  ~DeviceOperations() override {
    if (std::uncaught_exceptions() > 0) return;  // peers may never call close()
    try {
      transport_->close();
    } catch (const std::exception&) {  // a peer has failed and reports it
    }
  }
  std::string_view transport() const override { return transport_->name(); }
  Communicator& host() const override { return transport_->host(); }
  // Returns 20, as nccl-tests do, or less: the ring of events of cuda_ipc holds 512 posts and
  // receives of a run, and mpi_host keeps a page-locked copy of each message until the run ends.
  int repeats_of(int64_t bytes) const override {
    if (transport_->kind() == DeviceTransportKind::kMpiHost && bytes >= 1 << 16) return 1;
    return std::clamp(500 / host().size(), 1, bytes < 16 << 20 ? 20 : 5);
  }

  void stream_barrier() override {
    stream_.synchronize();
    host().barrier();
    transport_->stream_barrier(stream_);
  }

  void run(CommOperation what, int64_t bytes, int repeats) override {
    begin_.record(stream_);
    CommOperations::run(what, bytes, repeats);
    end_.record(stream_);
    transport_->wait_for(end_);
    transport_->finish();
  }
  std::optional<double> device_seconds() const override { return end_.seconds_since(begin_); }

  void write(Buffer at, std::span<const std::byte> bytes) override {
    stream_.copy(buffer(at).data(), bytes.data(), int64_t(bytes.size()));
    stream_.synchronize();
  }
  void read(Buffer at, std::span<std::byte> bytes) override {
    stream_.copy(bytes.data(), buffer(at).data(), int64_t(bytes.size()));
    stream_.synchronize();
  }

 private:
  DeviceBuffer& buffer(Buffer at) { return at == Buffer::kSource ? source_ : target_; }
  Rank me() const { return host().rank(); }
  void over(DeviceTransport::Ticket ticket) { transport_->complete(ticket, stream_); }
  void post(std::span<const Transfer> transfers) { over(transport_->post(transfers, stream_)); }

  void transfer(int64_t bytes, bool sends, bool receives) override {
    const std::array both{message_to(1 - me(), source_.bytes().first(size_t(bytes))),
                          message_from(1 - me(), target_.bytes().first(size_t(bytes)))};
    post(std::span(both).subspan(sends ? 0 : 1, size_t(sends) + size_t(receives)));
  }
  void all_gather(int64_t part) override {
    const std::vector<int64_t> counts(size_t(all_.count), part);
    over(transport_->post_gather({all_, target_.bytes(), counts}, stream_));
  }
  void all_to_all(int64_t part) override {
    const std::vector<int64_t> counts(size_t(all_.count), part);
    stream_.copy(target_.data() + me() * part, source_.data() + me() * part, part);
    Transfers transfers;
    list_all_to_all(all_, me(), source_.bytes(), counts, target_.bytes(), counts, transfers);
    post(transfers);
  }

  MemoryLedger memory_;
  std::unique_ptr<DeviceTransport> transport_;
  RankGroup all_;
  DeviceBuffer source_, target_;
  Stream stream_{Stream::Priority::kHigh};
  Event begin_{Event::Kind::kTiming}, end_{Event::Kind::kTiming};
};

}  // namespace

std::unique_ptr<CommOperations> make_device_operations(std::unique_ptr<DeviceTransport> transport,
                                                       int64_t max_bytes) {
  return std::make_unique<DeviceOperations>(std::move(transport), max_bytes);
}

}  // namespace longnet
