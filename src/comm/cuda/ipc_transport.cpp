// cuda_ipc: the receiver copies straight out of the sender's device memory.
//
// The sender records an event after its data is written and tells the receiver, over the host
// communicator, where the bytes are; the receiver's stream waits for that event, copies and records
// an event of its own, which the receiver acknowledges with, so that the sender may write there
// again. Ranks that are threads of one process use each other's addresses and events as they are;
// other processes open them (cudaIpc).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>

#include "comm/cuda/device_transport.h"
#include "core/check.h"

namespace longnet {
namespace {

// Events of a rank, used in turn. A peer may still wait for one of the run before, so a run uses at
// most half of them.
constexpr int kEvents = 1024;
constexpr size_t kHandleBytes = 64;  // size of a handle of memory or of an event
const std::string kNoHandle(kHandleBytes, '\0');

enum class Kind : int64_t { kOffer, kTaken };
// A message between hosts.
struct Notice {
  Kind kind;
  int64_t buffer, offset;  // offers only; `buffer`: index in the sender's list
  int64_t bytes;           // offered, or copied by the receiver
  int64_t event;           // index in the writer's ring of events
};

// Another rank's memory and events, as this process reaches them.
struct Peer {
  std::vector<std::byte*> buffers;
  std::vector<void*> opened;                  // to be closed
  std::vector<Event> imported;                // owned here
  const Event* events = nullptr;              // imported, or the other thread's own
  std::array<std::deque<Notice>, 2> notices;  // by kind: arrived, not used yet
};

class IpcTransport final : public DeviceTransport {
 public:
  explicit IpcTransport(Communicator& host)
      : DeviceTransport(DeviceTransportKind::kCudaIpc, host) {}
  ~IpcTransport() override { close_all(); }
  void open_group(const RankGroup&) override {}
  void close() override {
    close_all();
    host().barrier();  // memory may not be freed while another process has it open
  }

  void open(std::span<const std::span<std::byte>> buffers) override {
    own_.assign(buffers.begin(), buffers.end());
    const auto processes = host().all_texts(concat(host_name(), ":", getpid()));
    const bool in_one_process = std::ranges::count(processes, processes.front()) == host().size();
    if (in_one_process)
      for (const std::string& text : host().all_texts(std::to_string(current_device())))
        if (const int other = std::stoi(text); other != current_device()) reach_device(other);
    const auto kind = in_one_process ? Event::Kind::kOrder : Event::Kind::kShared;
    for (int i = 0; i < kEvents; ++i) events_.emplace_back(kind);
    if (host().size() == 1) return;
    peers_.resize(size_t(host().size()));
    const IpcTransport* const self = this;
    const std::string address(reinterpret_cast<const char*>(&self), sizeof self);
    const auto tables = host().all_texts(in_one_process ? address : handles());
    for (size_t r = 0; r < tables.size(); ++r) {
      if (int(r) == host().rank()) continue;
      if (in_one_process)
        share(tables[r], peers_[r]);
      else
        open_handles(tables[r], peers_[r]);
    }
    host().barrier();
  }

  void finish() override {
    for (const Communicator::Request request : notices_in_flight_) host().wait(request);
    notices_in_flight_.clear();
    notices_.clear();
    copying_.synchronize();
    used_in_run_ = 0;
    DeviceTransport::finish();
  }

 private:
  void close_all() noexcept {
    for (const Peer& peer : peers_)
      for (void* memory : peer.opened) close_memory(memory);
    peers_.clear();  // imported events before their owner destroys them
  }

  void start(Post& post, const Stream& stream) override {
    if (size_t(post.ticket) >= ready_.size()) ready_.resize(size_t(post.ticket) + 1);
    const int event = ready_[size_t(post.ticket)] = next_event();
    events_[size_t(event)].record(stream);
    for (const Transfer& t : post.transfers)
      if (t.kind == Transfer::Kind::kSend) send_notice(t.peer, offer_of(t, event));
  }

  void arrive(Post& post) override {
    copying_.wait(events_[size_t(ready_[size_t(post.ticket)])]);  // the target may be written
    for (const Transfer& t : post.transfers)
      if (t.kind == Transfer::Kind::kRecv) receive(t);
    for (const Transfer& t : post.transfers) {
      if (t.kind != Transfer::Kind::kSend) continue;
      const Notice taken = next_notice(t.peer, Kind::kTaken);
      copying_.wait(peers_[size_t(t.peer)].events[taken.event]);
      counters_.sent(taken.bytes);
    }
    post.end_on(copying_);
  }

  int next_event() {
    check(++used_in_run_ <= kEvents / 2, "cuda_ipc: more than ", kEvents / 2,
          " transfers of a rank in one run; use fewer ranks, or mpi_host");
    return int(used_events_++ % kEvents);
  }

  // Returns the handles that other processes open: of this rank's buffers (zeros for empty ones),
  // then of its events.
  std::string handles() const {
    std::string table;
    for (const auto& buffer : own_)
      table += buffer.empty() ? kNoHandle : export_memory(buffer.data());
    for (const Event& event : events_) table += event.export_handle();
    return table;
  }

  static void open_handles(const std::string& table, Peer& peer) {
    const size_t entries = table.size() / kHandleBytes;
    for (size_t i = 0; i < entries; ++i) {
      const std::string handle = table.substr(i * kHandleBytes, kHandleBytes);
      if (i >= entries - kEvents) {
        peer.imported.push_back(Event::import_handle(handle));
      } else if (handle == kNoHandle) {
        peer.buffers.push_back(nullptr);
      } else {
        peer.opened.push_back(import_memory(handle));
        peer.buffers.push_back(static_cast<std::byte*>(peer.opened.back()));
      }
    }
    peer.events = peer.imported.data();
  }

  // The other thread's buffers and events as they are.
  static void share(const std::string& address, Peer& peer) {
    const IpcTransport* other = nullptr;
    std::memcpy(&other, address.data(), sizeof other);
    for (const auto& buffer : other->own_) peer.buffers.push_back(buffer.data());
    peer.events = other->events_.data();
  }

  Notice offer_of(const Transfer& t, int event) const {
    for (size_t i = 0; i < own_.size(); ++i)
      if (!own_[i].empty() && t.data >= own_[i].data() &&
          t.data + t.bytes <= own_[i].data() + own_[i].size())
        return {Kind::kOffer, int64_t(i), t.data - own_[i].data(), t.bytes, event};
    check(t.bytes == 0, "a transfer of memory that was not opened");
    return {Kind::kOffer, 0, 0, 0, event};
  }

  void send_notice(Rank peer, const Notice& notice) {
    const Notice& kept = notices_.emplace_back(notice);  // until finish()
    notices_in_flight_.push_back(host().isend(peer, std::as_bytes(std::span(&kept, 1))));
  }

  // Offers and acknowledgements come on one channel, in the order in which the peer wrote them.
  Notice next_notice(Rank from, Kind kind) {
    Peer& peer = peers_[size_t(from)];
    auto& wanted = peer.notices[size_t(kind)];
    while (wanted.empty()) {
      Notice notice{};
      host().wait(host().irecv(from, std::as_writable_bytes(std::span(&notice, 1))));
      peer.notices[size_t(notice.kind)].push_back(notice);
    }
    const Notice notice = wanted.front();
    wanted.pop_front();
    return notice;
  }

  void receive(const Transfer& t) {
    const Notice offer = next_notice(t.peer, Kind::kOffer);
    check(offer.bytes == t.bytes, "rank ", t.peer, " sends ", offer.bytes, " bytes, ", t.bytes,
          " are expected");
    const Peer& peer = peers_[size_t(t.peer)];
    copying_.wait(peer.events[offer.event]);
    if (t.bytes > 0)
      copying_.copy(t.data, peer.buffers[size_t(offer.buffer)] + offer.offset, t.bytes);
    counters_.received(t.bytes);
    const int event = next_event();
    events_[size_t(event)].record(copying_);
    send_notice(t.peer, {Kind::kTaken, 0, 0, t.bytes, event});
  }

  std::vector<std::span<std::byte>> own_;
  std::vector<Event> events_;
  int64_t used_events_ = 0, used_in_run_ = 0;
  std::deque<Peer> peers_;
  std::vector<int> ready_;  // per ticket: the event after which its buffers may be touched
  std::deque<Notice> notices_;
  std::vector<Communicator::Request> notices_in_flight_;
  Stream copying_{Stream::Priority::kHigh};
};

}  // namespace

std::unique_ptr<DeviceTransport> make_ipc_transport(Communicator& host) {
  return std::make_unique<IpcTransport>(host);
}

}  // namespace longnet
